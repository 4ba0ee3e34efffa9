"""The last gate of `--ascii`: whatever is drawn, only ASCII reaches the terminal."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_PLAIN = str.maketrans("╭╮╰╯┌┐└┘┬┴┼─━▔│┃├┤…–→↑●▁▂▃▄▅▆▇█", "+++++++++++---||||.->^*____####")


class AsciiFilter(LineFilter):
    """Frames, scroll bars and marks by their likes; what has none, by a "?" for each cell."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(_plain(text), style, control) for text, style, control in segments]


def _plain(text: str) -> str:
    if text.isascii():
        return text
    return "".join(char if char.isascii() else "?" * cell_len(char) for char in text.translate(_PLAIN))
