"""An assertion on two sets of weights, which fails with the text of `numscope weights`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numscope.weights.sources import Source


def assert_same_weights(
    a: Source,
    b: Source,
    *,
    identical: bool = False,
    map: str | os.PathLike[str] | None = None,
    earlier: Source | Sequence[Source] = (),
    adapter: Source | None = None,
) -> None:
    """Raise AssertionError unless A has the weights of B: to the bit, or else within a cast, rounding or its encoding."""
    from numscope.report.terminal.weights import text
    from numscope.weights.comparison import weights

    answer = weights(a, b, map=map, earlier=earlier, adapter=adapter)
    wanted = ("identical",) if identical else ("identical", "equivalent")
    if answer.verdict not in wanted:
        raise AssertionError(f"these are not the same weights\n{text(answer)}")
