"""`python tests/tui/picture.py OUT.svg`: the demo's board after some updates, the same each time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from demo import Imagined
from fakes import FakeLaunch

from rftui.messages import Command
from rftui.tui.app import RftuiApp


async def main(out: str) -> None:
    viewer = Imagined(still=True)
    for _ in range(120):
        viewer.train()
    viewer.answer(Command("", "stop", 3))
    viewer.answer(Command("", "clone", 1, {"training_args.learning_rate": 4e-4}, True, "sft-lr0.0004-r16"))
    for _ in range(110):
        viewer.train()
    app = RftuiApp(FakeLaunch(viewer, "sft_assistant.py"))  # type: ignore[arg-type]
    async with app.run_test(size=(120, 36)) as pilot:
        while not viewer.drained:
            await pilot.pause(0.01)
        await pilot.press("space", "space", "space", "space")
        for _ in range(3):  # a drawing follows from the layout
            app._paint()
            app._draw()
            await pilot.pause()
        Path(out).write_text(app.export_screenshot(title="rftui"), encoding="utf-8")


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    time.tzset()
    asyncio.run(main(sys.argv[1]))
