"""A number that was fitted to one step is tried in the others, and is no repair where one of them refutes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import numscope as ns
from numscope.compare.comparison import compare
from numscope.core.report import Origin
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.recorded.paired_step import PairedStep, pair_step
from numscope.diagnose.repairs.fitted import in_other_steps

HALF = Explanation("semantic", "equal to the reference with 0.5", fitted=lambda case: case.target_output * 0.5)
Work = Callable[[torch.Tensor, int], torch.Tensor]


def captured(path: Path, work: Work) -> Path:
    with ns.capture(path, keep="tensors", on_error="raise") as recording:
        for step in range(3):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            torch.sigmoid(work(x, step))
            recording.step()
    return path


def tried(folder: Path, work: Work) -> Explanation:
    comparison = compare(captured(folder / "a", work), captured(folder / "b", lambda x, step: torch.tanh(x)))
    assert comparison.origin is not None

    @cache
    def paired(step: int, rank: int) -> PairedStep:
        return pair_step(comparison, step, rank)

    return in_other_steps(comparison, paired, comparison.origin, HALF)


def test_a_factor_that_holds_in_all_steps_is_a_repair_and_says_where_it_was_tried(tmp_path: Path) -> None:
    found = tried(tmp_path, lambda x, step: torch.tanh(x) * 2)
    assert found.repair == HALF.repair
    assert found.details["tried"] == {"steps": [0, 1, 2], "sentence": "tried in steps 0, 1, 2"}


@pytest.mark.parametrize("factors", [(2.0, 2.0, 4.0), (2.0, 1.0, 1.0)], ids=["another", "none"])
def test_a_factor_that_one_step_refutes_is_no_repair(tmp_path: Path, factors: Sequence[float]) -> None:
    found = tried(tmp_path, lambda x, step: torch.tanh(x) * factors[step])
    assert found.repair is None
    assert "as it holds in step 0 and not in step" in str(found.details["note"])


class Own(torch.optim.Optimizer):
    """An optimizer whose code is not torch's, so that it can't be made again."""

    def __init__(self, parameters: object, factors: Sequence[float]) -> None:
        super().__init__(parameters, {"lr": 0.1})  # type: ignore[arg-type]
        self.factors, self.count = factors, 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * (group["lr"] * self.factors[self.count]))
        self.count += 1


def trained(path: Path, factors: Sequence[float]) -> Path:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = Own(model.parameters(), factors)
    with ns.capture(path, model, keep="tensors", on_error="raise") as recording:
        for step in range(3):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            recording.step()
    return path


def of_the_optimizer(folder: Path, factors: Sequence[float]) -> Origin:
    found = ns.diagnose(trained(folder / "a", factors), trained(folder / "b", (1.0, 1.0, 1.0))).origin
    assert found is not None
    assert found.kind == "optimizer"
    return found


def test_a_factor_of_the_updates_is_tried_in_all_steps(tmp_path: Path) -> None:
    found = of_the_optimizer(tmp_path, (0.5, 0.5, 0.5))
    assert found.repair == "equal to the reference with a scale factor of 2 on the update"
    assert found.details["diagnosis"]["tried"]["steps"] == [0, 1, 2]


@pytest.mark.parametrize("factors", [(0.5, 0.25, 0.125), (1.0, 0.5, 0.5)], ids=["each its own", "not at first"])
def test_a_factor_of_the_updates_of_one_step_is_no_repair(tmp_path: Path, factors: Sequence[float]) -> None:
    found = of_the_optimizer(tmp_path, factors)
    assert (found.repair, found.mechanism) == (None, "semantic")
    assert "no repair, as it holds in step" in found.details["diagnosis"]["note"]
