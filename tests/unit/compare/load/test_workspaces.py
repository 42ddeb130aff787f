"""Bytes that a kernel keeps for its own backward."""

from __future__ import annotations

import numpy as np

from numscope.compare.load.side import Codebook, Side
from numscope.compare.load.workspaces import without_workspaces
from tests.unit.compare.scripted import Script, numbers

X, BYTES = numbers((4, 8)), np.arange(32, dtype=np.uint8)


def slots(side: Side) -> list[str]:
    return [side.book.words[slot] for slot in side.slots.slot.tolist()]


def test_bytes_beside_a_result_are_not_compared() -> None:
    """Bytes that a kernel keeps for its own backward (level `aten`, recurrent layers) are no result, and not compared."""
    script = Script()
    script.call("Aten.lstm.0.forward", {"input.0": X}, {"output.0": X + 1, "output.1": BYTES})
    script.calls[-1]["kind"] = "aten"
    side = without_workspaces(script.side(Codebook()))
    assert slots(side) == ["input.0", "output.0"]
    assert side.slots.start.tolist() == [0, 2]


def test_an_image_of_bytes_stays() -> None:
    script = Script()
    script.call("Aten.clone.0.forward", {"input.0": BYTES}, {"output.0": BYTES + 1, "output.1": X}, kind="aten")
    script.call("Functional.cut.0.forward", {"input.0": X}, {"output.0": X + 1, "output.1": BYTES + 2})
    side = script.side(Codebook())
    assert slots(without_workspaces(side)) == slots(side)
