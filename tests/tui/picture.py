"""`python tests/tui/picture.py OUT.svg`: the screen of a real training of the main sample, for the README.

It trains until every run has ended chunk 4, stops a run, marks four, and keeps what the screen shows.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from rftui.launching import spawn
from rftui.tui.app import RftuiApp

_SAMPLE = Path(__file__).parents[2] / "sample_experiments" / "sft_assistant.py"


async def main(out: str, home: Path) -> None:
    app = RftuiApp(spawn([str(_SAMPLE)], home, title=_SAMPLE.name))
    async with app.run_test(size=(120, 36)) as pilot:

        async def until(chunk: int) -> None:
            while min((run.chunk for run in app.board.runs.values()), default=0) < chunk:
                assert not app.session.ended, "the training ended early"
                await pilot.pause(0.2)

        await until(4)
        await pilot.press("s")
        while app.board.runs[1].state != "stopped":
            await pilot.pause(0.2)
        await pilot.press("space", "space", "space", "space")
        for _ in range(3):  # a drawing follows from the layout
            app.paint()
            app.view.draw()
            await pilot.pause()
        Path(out).write_text(app.export_screenshot(title="rftui"), encoding="utf-8")
        await pilot.press("q", "s")
        while not app.session.ended:
            await pilot.pause(0.2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1], Path(folder)))
