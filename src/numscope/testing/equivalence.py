"""Assertions on two runs, which fail with the text of `numscope compare`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from numscope.compare.comparison import CompareOptions
    from numscope.store.reader import Run

    RunLike = str | os.PathLike[str] | Run


def assert_equivalent(run_a: RunLike, run_b: RunLike, **options: Unpack[CompareOptions]) -> None:
    """Raise AssertionError unless the two runs are identical or equivalent; the options are those of `ns.compare`."""
    _check(run_a, run_b, ("identical", "equivalent"), options)


def assert_identical(run_a: RunLike, run_b: RunLike, **options: Unpack[CompareOptions]) -> None:
    """Raise AssertionError unless every matched tensor of the two runs is equal to the bit, and nothing is unmatched."""
    _check(run_a, run_b, ("identical",), options)


def _check(run_a: RunLike, run_b: RunLike, wanted: tuple[str, ...], options: CompareOptions) -> None:
    from numscope.compare.comparison import compare
    from numscope.report.terminal.comparison import text

    comparison = compare(run_a, run_b, **options)
    if comparison.verdict not in wanted:
        raise AssertionError(f"the runs are not {' or '.join(wanted)}\n{text(comparison)}")
