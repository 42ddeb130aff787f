"""Pairs of runs at level aten: other ways to compute the same are equivalent, one wrong operator is named, backward too."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import numscope as ns


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


class WrongSwish(Swish):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * s))


class Net(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], again: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(8, 8), Act(function), nn.Linear(8, 8)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.again:
            return checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


class Act(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Recurrent(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def trained(path: Path, model: nn.Module, half: bool = False) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ns.capture(path, model, level="aten", on_error="raise") as cap:
        for step in range(2):
            x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16) if half else nullcontext():
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            cap.step()
    return path


@pytest.mark.parametrize(
    ("target", "reference", "call"),
    [
        (lambda x: x * torch.sigmoid(1.702 * x), F.gelu, "mul"),
        (
            lambda x: 0.5 * x * (1 + torch.tanh(0.79 * (x + 0.044715 * x**3))),
            lambda x: F.gelu(x, approximate="tanh"),
            "pow",
        ),
        (lambda x: (x / 1.01).softmax(-1), lambda x: x.softmax(-1), "div"),
        (lambda x: (x.bfloat16() * 2).tanh().float(), lambda x: (x * 2).tanh(), "_to_copy"),
    ],
)
def test_adam_s_first_step_which_has_no_size_proves_no_agreement(
    tmp_path: Path, target: Any, reference: Any, call: str
) -> None:
    found = ns.compare(trained(tmp_path / "target", Net(target)), trained(tmp_path / "reference", Net(reference)))
    assert found.origin is not None, found
    assert found.origin.module == "act"
    assert found.origin.step == 0
    assert f".{call}." in found.origin.call or found.origin.kind == "extra"


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), F.gelu),
        (lambda x: (x - x.logsumexp(-1, keepdim=True)).exp(), lambda x: x.softmax(-1)),
        (Swish.apply, F.silu),
    ],
)
def test_the_same_by_other_operators_is_equivalent(tmp_path: Path, target: Any, reference: Any) -> None:
    found = ns.compare(trained(tmp_path / "target", Net(target)), trained(tmp_path / "reference", Net(reference)))
    assert found.verdict == "equivalent", found


def test_the_wrong_operator_of_a_function_s_backward_is_named_with_module_and_line(tmp_path: Path) -> None:
    reference = trained(tmp_path / "reference", Net(Swish.apply))
    found = ns.compare(trained(tmp_path / "target", Net(WrongSwish.apply)), reference)
    assert (found.origin.call, found.origin.kind) == ("Aten.rsub.0.backward", "missing")
    assert (found.origin.phase, found.origin.module) == ("backward", "act")
    assert found.origin.source is not None
    assert found.origin.source.file == __file__
    assert "in act backward" in found.origin.reason


@pytest.mark.parametrize("half", [False, True])
def test_a_function_in_a_checkpoint_shifts_no_operators_of_backward(tmp_path: Path, half: bool) -> None:
    reference = trained(tmp_path / "reference", Net(Swish.apply), half)
    found = ns.compare(trained(tmp_path / "target", Net(Swish.apply, again=True), half), reference)
    assert found.verdict in ("equivalent", "identical"), found


def test_what_a_kernel_keeps_for_its_backward_is_not_compared(tmp_path: Path) -> None:
    reference = trained(tmp_path / "reference", Recurrent())
    found = ns.compare(trained(tmp_path / "same", Recurrent()), reference)
    assert found.verdict == "identical", found
    found = ns.compare(trained(tmp_path / "dropout", Recurrent(0.2)), reference)
    assert "bernoulli" in found.origin.call, found


@pytest.mark.parametrize("level", ["mix", "aten"])
@pytest.mark.parametrize("change", ["round", "clamp"])
def test_what_is_written_to_weights_after_the_optimizer_is_named_when_the_next_step_shows_it(
    tmp_path: Path, level: str, change: str
) -> None:
    def run(name: str, changed: bool) -> Path:
        model = Net(F.gelu)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ns.capture(tmp_path / name, model, level=level, on_error="raise") as cap:
            for step in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
                optimizer.step()
                if changed:
                    with torch.no_grad():
                        weight = model.last.weight
                        weight.copy_(weight.bfloat16()) if change == "round" else weight.clamp_(-0.3, 0.3)
                cap.step()
        return tmp_path / name

    paths = run("target", True), run("reference", False)
    for found, kind in ((ns.compare(*paths), "extra"), (ns.compare(*paths[::-1]), "missing")):
        assert found.origin.kind == kind, found
        assert {"round": ".copy_.", "clamp": ".clamp_."}[change] in found.origin.call
        assert "the next step then gets parameters.last.weight off by" in found.origin.reason
        assert found.origin.source.file == __file__


class Classifier(nn.Module):
    def __init__(self, twice: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.twice = nn.Linear(8, 6), twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y.softmax(-1) if self.twice else y


def test_a_loss_s_gradient_by_its_log_probabilities_proves_nothing_of_them(tmp_path: Path) -> None:
    def run(name: str, twice: bool) -> Path:
        model = Classifier(twice)
        optimizer = torch.optim.Adam(model.parameters())
        with ns.capture(tmp_path / name, model, level="aten", on_error="raise") as cap:
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
            F.cross_entropy(model(x), torch.arange(6)).backward()
            optimizer.step()
            cap.step()
        return tmp_path / name

    found = ns.compare(run("target", True), run("reference", False))
    assert found.origin is not None, found
    assert (found.origin.kind, found.origin.call) == ("extra", "Aten._softmax.0.forward")
