"""The guard at module level: what code between modules makes, losses, gradients; and infinities that come to nothing."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from tests.integration.births import Block, Struck, buckets, marked


def test_a_module_is_named_in_whose_code_it_was_made(tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = torch.exp(self.parts[0](x).abs() * 1e6)
        return self.parts[1](x).sum()  # origin

    model = Block(work, nn.Linear(4, 4), nn.Linear(4, 4))
    origin = struck(model, lambda: model(torch.ones(2, 4)), tmp_path / "run", level="module")
    assert (origin["call"], origin["kind"], origin["source"]["line"]) == (
        "Module.Block.forward.0",
        "module",
        marked(work),
    )
    assert 'level="mix" names the call' in origin["reason"]


@pytest.mark.parametrize("grad", [False, True])
def test_a_gradient_is_made_in_the_code_that_it_passes_through(grad: bool, tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(self.parts[0](x) * 0).sum()

    model = nn.Sequential(Block(work, nn.Linear(4, 4)))
    job = lambda: model(torch.ones(2, 4, requires_grad=grad)).backward()  # noqa: E731
    origin = struck(model, job, tmp_path / "run", level="module")
    assert (origin["call"], origin["phase"]) == ("Module.0.Block.backward.0", "backward")


def test_a_loss_outside_any_module_is_named(tmp_path: Path, struck: Struck) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = torch.autograd.backward

    def job() -> None:
        loss = F.cross_entropy(model(torch.ones(3, 4)), torch.full((3,), -100))
        loss.backward()  # origin

    origin = struck(model, job, tmp_path / "run", level="module")
    assert (origin["call"], origin["source"]["line"]) == ("Tensor.backward.0.forward", marked(job))
    assert "the loss" in origin["reason"]
    assert torch.autograd.backward is before


def test_a_gradient_that_is_given_to_backward_is_named_at_the_outermost_module(tmp_path: Path, struck: Struck) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    gradient = torch.full((3, 4), math.nan)
    job = lambda: model(torch.ones(3, 4)).backward(gradient)  # noqa: E731
    assert struck(model, job, tmp_path / "run", level="module")["call"] == "Module.Sequential.backward.0"


@pytest.mark.parametrize("deferred", [False, True])
def test_a_scaled_loss_that_overflows_is_a_skipped_step_at_module_level_too(deferred: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with ns.guard(model, record=None, level="module", deferred=deferred) as guard:
        for _ in range(3):
            scaler.scale((model(torch.ones(4, 8)) * 300).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (guard.origins, guard.skipped_steps) == ([], [0, 1, 2])


# Infinities that come to nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_an_infinity_that_is_only_turned_into_a_number_is_silent(training: bool, deferred: bool) -> None:
    model = Block(buckets, nn.Linear(4, 4), nn.Embedding(8, 4))
    with warnings.catch_warnings(), ns.guard(model, record=None, deferred=deferred, calls=2) as guard:
        warnings.simplefilter("error")
        for _ in range(40):  # so that the end of a window falls on every call
            with torch.set_grad_enabled(training):
                total = model(torch.ones(2, 4)).sum()
            if training:
                total.backward()
    assert guard.origins == []


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("is given back", lambda x: torch.exp(x * 1e4)),
        ("is computed with", lambda x: 1 / torch.exp(x * 1e4)),
        ("becomes a NaN", lambda x: torch.exp(x * 1e4) * 0),
        ("is chosen, and left over", lambda x: torch.exp(x * 1e4).clamp_min(0)),
        ("meets a gradient", lambda x: torch.exp(x * 1e4) * x.clone().requires_grad_()),
    ],
)
def test_an_infinity_that_comes_to_something_is_an_origin_without_gradients_too(
    end: str, code: Any, tmp_path: Path, struck: Struck
) -> None:
    model = Block(lambda self, x: code(x))
    model.eval()
    job = lambda: model(torch.ones(3))  # noqa: E731
    origin = struck(model, job, tmp_path / "run")
    assert origin["call"] == "Torch.exp.0.forward", end
    assert origin["source"]["line"] == code.__code__.co_firstlineno
    assert ns.open_run(tmp_path / "run").tensor("Torch.exp.0.forward.output.0").tolist() == [math.inf] * 3


@pytest.mark.parametrize("deferred", [False, True])
def test_the_step_that_takes_a_wrong_gradient_is_no_origin_of_its_own(deferred: bool) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = ns.guard(model, max_hits=9, action="warn", record=None, level="module", deferred=deferred)
    with warnings.catch_warnings(), guard:
        warnings.simplefilter("ignore")
        y = model(torch.randn(3, 4))
        torch.sqrt((y - y.detach()).square().sum()).backward()
        optimizer.step()
    assert [item.call for item in guard.origins] == ["Module.Linear.backward.0"]
