"""Lockstep: calls that are fed the reference's inputs are told apart where rounding hides what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.diagnose import lockstep
from numscope.diagnose.bisect import bisection
from numscope.diagnose.recorded.paired_step import pair_step
from numscope.diagnose.sharpened import is_coarse

WIDTH = 64
Act = Callable[[torch.Tensor], torch.Tensor]


def silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


def written_out(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def nearly(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.003 * x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


class Block(nn.Module):
    def __init__(self, act: Act) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


def run(folder: Path, act: Act, dtype: torch.dtype = torch.bfloat16, last: Act | None = None) -> Path:
    """Record six blocks, of which the fourth computes with an activation of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(act if layer == 3 else last or act) for layer in range(6)))
    x = torch.randn(8, 16, WIDTH)
    model = model.to(dtype)
    with ns.capture(folder, model, keep="tensors", on_error="raise") as cap:
        model(x.to(dtype)).float().square().mean().backward()
        cap.step()
    return folder


def test_other_calls_that_do_the_same_agree_in_float64(tmp_path: Path) -> None:
    found = ns.compare(run(tmp_path / "t", written_out), run(tmp_path / "r", silu, torch.float32))
    assert found.verdict == "equivalent"
    seen = found.report.details["lockstep"]
    assert seen["computed"] >= 6
    assert seen["largest"] < 1e-12
    assert not seen["not_made"]
    assert found.report.resolution is not None
    assert found.report.resolution["sentence"].startswith("fed the reference's inputs, ")


@pytest.mark.parametrize(("wrong", "right", "call"), [(nearly, silu, "mul"), (gelu_tanh, gelu, "mul")])
def test_a_fault_that_hides_in_another_precision_is_named(tmp_path: Path, wrong: Act, right: Act, call: str) -> None:
    target, reference = run(tmp_path / "t", wrong, last=right), run(tmp_path / "r", right, torch.float32)
    found = ns.compare(target, reference)
    assert found.verdict == "diverged"
    assert found.origin is not None
    assert (found.origin.module, found.origin.mechanism) == ("3", "semantic")
    assert f".{call}." in found.origin.call
    assert "fed the reference's inputs" in found.origin.reason
    assert found.origin.expected is not None
    assert found.origin.expected < 1e-4


def test_runs_without_tensors_are_as_compare_finds_them(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, act, last=gelu) for name, act in (("t", gelu_tanh), ("r", gelu))]
    with_tensors = ns.compare(*runs)
    assert with_tensors.verdict == "diverged"
    for name, act in (("ts", gelu_tanh), ("rs", gelu)):
        torch.manual_seed(0)
        model = nn.Sequential(Block(act)).bfloat16()
        with ns.capture(tmp_path / name, model, on_error="raise"):
            model(torch.randn(8, 16, WIDTH).bfloat16())
    found = ns.compare(tmp_path / "ts", tmp_path / "rs")
    assert "lockstep" not in found.report.details


def test_data_is_let_go_where_a_window_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "WINDOW", 1)
    found = ns.compare(run(tmp_path / "t", written_out), run(tmp_path / "r", silu, torch.float32))
    assert found.verdict == "equivalent"
    pairs = pair_step(found, 0, 0)
    for result in lockstep.results(pairs, lockstep.Lockstep()):
        pairs.target.data(result.target.output)
        assert pairs.target.held() > 0
    assert pairs.target.held() == 0


def test_a_step_that_is_larger_than_the_disk_allows_is_kept_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ns.compare(run(tmp_path / "t", written_out), run(tmp_path / "r", silu, torch.float32))
    assert is_coarse(found.report)
    pairs = pair_step(found, 0, 0)
    assert list(bisection.lockstep_windows(pairs)) == [([], [])]
    monkeypatch.setattr(bisection, "WINDOW_ON_DISK", 1 << 18)
    windows = list(bisection.lockstep_windows(pairs))
    assert len(windows) > 2
    needed = {name for target, _ in windows for name in target}
    assert any(name.startswith(("Torch.sigmoid.3.forward", "Tensor.mul.3")) for name in needed)


class Turned(nn.Module):
    """Divides by powers, or multiplies by powers of the opposite exponents."""

    def __init__(self, opposite: bool) -> None:
        super().__init__()
        self.opposite = opposite

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.opposite:
            return x * 1000.0 ** (-torch.arange(8.0) / 8)
        return x / 1000.0 ** (torch.arange(8.0) / 8)


def test_calls_that_are_judged_by_where_they_lead_are_not_fed_each_others_inputs(tmp_path: Path) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    for name, opposite in (("t", True), ("r", False)):
        model = Turned(opposite)
        with ns.capture(tmp_path / name, model, keep="tensors", on_error="raise"):
            model(x)
    found = ns.compare(tmp_path / "t", tmp_path / "r")
    assert found.verdict == "equivalent", found.report.reason
    pairs = pair_step(found, 0, 0)
    for result in lockstep.results(pairs, lockstep.Lockstep()):
        assert lockstep._judged(result, lockstep.Lockstep()) is None
