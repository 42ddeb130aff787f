"""`numscope check` where a run does not show everything: code between modules, skipped steps, infinities without harm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from numscope.__main__ import main
from numscope.check.checking import check
from tests.integration.births import Block, buckets, captured, marked


def imported(run: Path, folder: Path) -> Path:
    """Return the run as another tool's dump would have it."""
    assert main(["export", str(run), str(folder / "dump"), "--format", "msprobe"]) == 0
    assert main(["import", str(folder / "dump"), str(folder / "back")]) == 0
    return folder / "back"


def test_at_module_level_the_module_is_named_in_whose_code_it_was_made(tmp_path: Path) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = torch.exp(self.parts[0](x).abs() * 1e6)
        return self.parts[1](x).sum()  # origin

    model = Block(work, nn.Linear(4, 4), nn.Linear(4, 4))
    found = check(captured(tmp_path / "run", model, lambda: model(torch.ones(2, 4)).backward(), level="module"))
    assert [(origin.call, origin.kind) for origin in found.origins] == [("Module.Block.forward.0", "module")]
    assert found.origins[0].source is not None
    assert found.origins[0].source.line == marked(work)
    assert "before it called Module.parts.1.Linear.forward.0" in found.origins[0].reason


def test_at_module_level_a_gradient_is_made_in_the_code_that_it_passes_through(tmp_path: Path) -> None:
    model = Block(lambda self, x: torch.sqrt(self.parts[0](x) * 0).sum(), nn.Linear(4, 4))
    found = check(captured(tmp_path / "run", model, lambda: model(torch.ones(2, 4)).backward(), level="module"))
    assert [origin.call for origin in found.origins] == ["Module.Block.backward.0"]
    outside = captured(
        tmp_path / "outside", model, lambda: torch.log(model(torch.ones(2, 4))).backward(), level="module"
    )
    origin = check(outside).origin
    assert origin is not None
    assert origin.call == "Module.Block.backward.0"
    assert "the loss, or code that follows it" in origin.reason


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizers_step_inherits_from_the_operator_inside_it(foreach: bool, tmp_path: Path) -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0, foreach=foreach)

    def job() -> None:
        (model(torch.ones(2, 3)).sum() * 0).backward()
        optimizer.step()  # origin

    found = check(captured(tmp_path / "run", model, job, level="aten"))
    assert [origin.call for origin in found.origins] == [f"Aten.{'_foreach_' * foreach}addcdiv_.0.forward"]
    assert found.origins[0].source is not None
    assert found.origins[0].source.line == marked(job)


def test_an_optimizers_step_of_a_mix_run_says_what_it_had_to_do_with(tmp_path: Path) -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0)

    def job() -> None:
        (model(torch.ones(2, 3)).sum() * 0).backward()
        optimizer.step()  # origin

    origin = check(captured(tmp_path / "run", model, job)).origin
    assert origin is not None
    assert (origin.call, origin.details["slot"]) == ("Optimizer.Adam.step.0", "output.weight")
    assert origin.reason.endswith("its gradient is 0, lr=0.001, eps=0")
    assert "a run of --level aten names the operator" in origin.details["finer"]
    assert origin.source is not None
    assert origin.source.line == marked(job)


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_module_around_a_checkpoint_is_not_the_origin_of_what_it_recomputes(
    reentrant: bool, tmp_path: Path
) -> None:
    def inner(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(self.parts[0](x) * 0)  # origin

    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, self, x, use_reentrant=reentrant).sum()

    model = Block(work, nn.Linear(4, 4))
    found = check(captured(tmp_path / "run", model, lambda: model(torch.ones(2, 4, requires_grad=True)).backward()))
    assert [origin.call for origin in found.origins] == ["Torch.sqrt.0.backward"]
    assert found.origins[0].source is not None
    assert found.origins[0].source.line == marked(inner)


def test_a_module_that_is_called_twice_has_its_gradients_from_both_calls(tmp_path: Path) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = torch.sqrt(self.parts[0](x) * 0)  # origin
        return self.parts[0](x).sum()

    model = Block(work, nn.Linear(4, 4))
    found = check(captured(tmp_path / "run", model, lambda: model(torch.ones(2, 4)).backward()))
    assert [origin.call for origin in found.origins] == ["Torch.sqrt.0.backward"]
    assert found.origins[0].source is not None
    assert found.origins[0].source.line == marked(work)


def test_what_was_wrong_before_it_entered_the_model_is_one_origin(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    data = torch.randn(4, 4)
    data[3, 1] = math.nan
    found = check(captured(tmp_path / "run", model, lambda: model(torch.stack([data[2], data[3]])).sum().backward()))
    assert [(origin.kind, origin.call) for origin in found.origins] == [("data", "Data.Linear.0.input")]


def test_a_parameter_is_named_in_an_imported_dump_too(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    found = check(
        imported(captured(tmp_path / "run", model, lambda: model(torch.ones(2, 4)).sum().backward()), tmp_path)
    )
    assert [(origin.kind, origin.call) for origin in found.origins] == [("parameter", "Module.1.Linear.forward.0")]


@pytest.mark.parametrize("level", ["module", "mix", "aten"])
@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_are_no_fault_at_any_level(level: str, fused: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)

    def job() -> None:
        optimizer.zero_grad()
        scaler.scale((model(torch.ones(4, 8)) * 300).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    step = torch.amp.GradScaler.step
    found = check(captured(tmp_path / "run", model, job, steps=2, level=level))
    assert found.origins == ()
    assert found.skipped_steps == (0, 1)
    assert torch.amp.GradScaler.step is step


@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_an_infinity_that_is_only_compared_and_turned_into_a_number_does_no_harm(level: str, tmp_path: Path) -> None:
    model = Block(buckets, nn.Linear(4, 4), nn.Embedding(8, 4))
    run = captured(tmp_path / "run", model, lambda: model(torch.ones(2, 4)).sum().backward(), level=level)
    assert check(run).origins == ()
    if level == "mix":
        assert check(imported(run, tmp_path)).origins == ()


def test_an_infinity_that_is_chosen_away_but_comes_back_as_a_gradient_did_harm(tmp_path: Path) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x) * 0
        return torch.where(x > 0, torch.log(x), 0.0).sum()

    model = Block(work, nn.Linear(4, 4))
    found = check(captured(tmp_path / "run", model, lambda: model(torch.ones(2, 4)).backward()))
    assert found.origins[0].call == "Torch.log.0.forward"


def test_a_losss_own_workspace_is_silent(tmp_path: Path) -> None:
    model = nn.Linear(4, 5)

    def job() -> None:
        table = model(torch.randn(10, 2, 4)).log_softmax(-1)
        lengths = torch.tensor([10, 10]), torch.tensor([3, 2])
        F.ctc_loss(table, torch.tensor([[1, 2, 2], [3, 4, 0]]), *lengths).backward()

    assert not check(captured(tmp_path / "run", model, job, level="aten")).found


def test_a_buffer_that_was_not_finite_before_is_not_the_modules_work(tmp_path: Path) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("cache", torch.full((8, 4), math.nan))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache[:3] = self.layer(x).detach()
            return self.layer(x)

    model = Keeps()
    job = lambda: model(torch.randn(3, 4)).sum().backward()  # noqa: E731
    assert check(captured(tmp_path / "run", model, job, level="module")).origins == ()
