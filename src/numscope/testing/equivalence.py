"""Assertions on two runs; what they say when they fail is what `numscope compare` prints."""

from __future__ import annotations

from typing import Any


def assert_equivalent(run_a: Any, run_b: Any, **options: Any) -> None:
    """Raise AssertionError unless the two runs are identical or equivalent; the options are those of `ns.compare`."""
    _check(run_a, run_b, ("identical", "equivalent"), options)


def assert_identical(run_a: Any, run_b: Any, **options: Any) -> None:
    """Raise AssertionError unless every matched tensor of the two runs is the same to the bit, and nothing is unmatched."""
    _check(run_a, run_b, ("identical",), options)


def _check(run_a: Any, run_b: Any, wanted: tuple[str, ...], options: dict[str, Any]) -> None:
    from numscope.compare.comparison import compare
    from numscope.report.terminal.comparison import text

    comparison = compare(run_a, run_b, **options)
    if comparison.verdict not in wanted:
        raise AssertionError(f"the runs are not {' or '.join(wanted)}\n{text(comparison)}")
