"""Calls and numbers as people speak of them: `linear in blocks.2.mlp backward`, `0.0031`."""

from __future__ import annotations

import math

from numscope.compare.load.side import Side


def number(value: float) -> str:
    """Return a measure with two digits."""
    if math.isinf(value):
        return "infinity"
    return "0" if value == 0 else f"{value:.2g}"


def title(side: Side, row: int) -> str:
    """Return a call's operator, the module it runs in, and the direction if it is backward."""
    words, calls = side.book.words, side.calls
    text = operator(side, row).removeprefix("Optimizer.")
    if module := module_of(side, row):
        text += f" in {module}" if words[calls.kind[row]] != "module" else f" {module}"
    return text + (" backward" if words[calls.phase[row]] == "backward" else "")


def operator(side: Side, row: int) -> str:
    """Return a call's operator; of a module call, the module's class."""
    words, calls = side.book.words, side.calls
    if words[calls.kind[row]] == "module":
        return str(words[calls.module_class[row]])
    return str(words[calls.op[row]])


def module_of(side: Side, row: int) -> str:
    """Return the path of the module that a call runs in, "" for none; of a backward call, its forward call's."""
    codes = side.calls.module[[row, forward_of(side, row)]].tolist()
    return next((side.book.words[code] for code in codes if code >= 0 and side.book.words[code]), "")


def forward_of(side: Side, row: int) -> int:
    """Return a backward call's forward call, and any other call itself.

    The autograd engine runs backward calls, so that they have no source line and no module of their own.
    """
    forward = int(side.calls.forward[row])
    return forward if forward >= 0 else row
