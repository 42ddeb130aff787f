"""Each hypothesis about ranks fits its own fault, by name, and none fits where nothing is wrong."""

from __future__ import annotations

import pytest
import torch

from numscope.diagnose.hypotheses.collectives import NAMED, Ranks, fitting

torch.manual_seed(0)
PARTS = tuple(torch.randn(4, 6, dtype=torch.float64) for _ in range(3))
TOTAL = torch.stack(PARTS).sum(0)
SHARDED = tuple(torch.randn(6, 6, dtype=torch.float64) for _ in range(3))
SHARDS = torch.stack(SHARDED).sum(0).chunk(3)
OUT = torch.randn(4, 6, dtype=torch.float64)
RANK = 1

CASES = {
    "own part for the sum": (PARTS, PARTS[RANK], TOTAL, "missing all-reduce", "the sum over 3 ranks"),
    "own part for the mean": (PARTS, PARTS[RANK], TOTAL / 3, "missing all-reduce", "the mean over 3 ranks"),
    "reduced twice": ((TOTAL,) * 3, TOTAL * 3, TOTAL, "doubled all-reduce", "done once (now twice"),
    "sum for mean": (PARTS, TOTAL, TOTAL / 3, "sum for mean", "the mean over 3 ranks (now the sum"),
    "mean for sum": (PARTS, TOTAL / 3, TOTAL, "mean for sum", "the sum over 3 ranks (now the mean"),
    "three times too large": ((OUT,) * 3, OUT, OUT / 3, "times N", "divided by the number of ranks, 3"),
    "three times too small": (PARTS, OUT, OUT * 3, "times N", "multiplied by the number of ranks, 3"),
    "maximum": (
        PARTS,
        torch.stack(PARTS).amax(0),
        TOTAL,
        "other reduction",
        "the sum over the ranks (now the maximum)",
    ),
    "order": (
        PARTS,
        torch.cat(PARTS[::-1], 1),
        torch.cat(PARTS, 1),
        "concatenation",
        "0, 1, 2 (now 2, 1, 0) along axis 1",
    ),
    "axis": (PARTS, torch.cat(PARTS, 1), torch.cat(PARTS, 0), "concatenation", "along axis 0 (now along axis 1)"),
    "not joined": (PARTS, PARTS[RANK], torch.cat(PARTS, 0), "concatenation", "now each rank keeps its own"),
    "another rank's": (
        PARTS,
        PARTS[RANK],
        PARTS[2],
        "permutation of shards",
        "the part of rank 2 (now that of rank 1)",
    ),
    "another shard": (
        SHARDED,
        SHARDS[0],
        SHARDS[1],
        "permutation of shards",
        "shard 1 of the sum along axis 0 (now shard 0)",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_hypothesis_that_fits_is_the_fault(name: str) -> None:
    parts, given, wanted, hypothesis, words = CASES[name]
    found = fitting(Ranks(parts, given, wanted, RANK, 1e-12))
    assert found is not None
    assert found[0] == hypothesis
    assert words in found[1].change


def test_every_hypothesis_is_shown() -> None:
    assert {case[3] for case in CASES.values()} == set(NAMED)


@pytest.mark.parametrize(
    ("given", "wanted"), [(TOTAL, TOTAL), (TOTAL * (1 + 1e-14), TOTAL), (PARTS[RANK], torch.randn(4, 6).double())]
)
def test_nothing_fits_where_nothing_is_wrong_or_something_else_is(given: torch.Tensor, wanted: torch.Tensor) -> None:
    assert fitting(Ranks(PARTS, given, wanted, RANK, 1e-12)) is None


def test_one_rank_alone_has_no_such_fault() -> None:
    assert fitting(Ranks((OUT,), OUT, OUT * 2, 0, 1e-12)) is None
