"""Diagnose, end to end: two real runs, one fault, its mechanism and its repair."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.report.terminal.diagnosis import lines


class Net(nn.Module):
    """Two blocks; what a block does in its middle is what the tests vary."""

    def __init__(self, middle: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.middle(self, self.norm(self.embed(x)))
        return self.head(torch.tanh(h))


def run(
    path: Path, middle: Callable[[nn.Module, torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net(middle).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    with ns.capture(path, model, keep="tensors", on_error="raise") as cap:
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(6, 5, 8, generator=generator).to(dtype)
            F.mse_loss(model(x), torch.zeros(6, 5, 4, dtype=dtype)).backward()
            optimizer.step()
            cap.step()


Middle = Callable[[nn.Module, torch.Tensor], torch.Tensor]
FAULTS: dict[str, tuple[Middle, Middle, str, str]] = {
    "eps": (
        lambda m, h: F.layer_norm(h * 1e-2, (16,), eps=1e-3),
        lambda m, h: F.layer_norm(h * 1e-2, (16,), eps=1e-6),
        "semantic",
        r"eps=1e-06 \(now 0.001\)",
    ),
    "gelu": (lambda m, h: F.gelu(h, approximate="tanh"), lambda m, h: F.gelu(h), "semantic", "approximate='none'"),
    "gelu written out": (
        lambda m, h: 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))),
        lambda m, h: F.gelu(h),
        "semantic",
        "erf form",
    ),
    "scale": (lambda m, h: h * (1 / math.sqrt(12)), lambda m, h: h * (1 / math.sqrt(16)), "semantic", r"1/4.*1/√12"),
    "transposed": (
        lambda m, h: h @ m.mix.weight + m.mix.bias,
        lambda m, h: h @ m.mix.weight.t() + m.mix.bias,
        "semantic",
        "mix.weight transposed",
    ),
    "bias": (
        lambda m, h: F.linear(h, m.mix.weight),
        lambda m, h: F.linear(h, m.mix.weight, m.mix.bias),
        "semantic",
        "bias",
    ),
    "axis": (lambda m, h: h.softmax(1), lambda m, h: h.softmax(-1), "semantic", r"dim=-1 \(now 1\)"),
    "reduction": (
        lambda m, h: h - h.sum(-1, True),  # h has no mean: the outputs agree, the gradients do not
        lambda m, h: h - h.mean(-1, True),
        "semantic",
        "mean in place of sum",
    ),
    "soft cap": (lambda m, h: h * 9, lambda m, h: 3 * torch.tanh(h * 9 / 3), "semantic", r"soft cap 3·tanh\(x/3\)"),
    "operands": (lambda m, h: h - m.mix(h), lambda m, h: m.mix(h) - h, "semantic", "swapped|sign"),
    "causal": (
        lambda m, h: F.scaled_dot_product_attention(h, h, h),
        lambda m, h: F.scaled_dot_product_attention(h, h, h, is_causal=True),
        "semantic",
        "is_causal=True",
    ),
    "unbiased": (
        lambda m, h: h / h.var(-1, unbiased=True, keepdim=True),
        lambda m, h: h / h.var(-1, unbiased=False, keepdim=True),
        "semantic",
        r"unbiased=False \(now True\)",
    ),
    "axis of a form with a tensor": (
        lambda m, h: h - h.max(1, keepdim=True).values,
        lambda m, h: h - h.max(2, keepdim=True).values,
        "semantic",
        r"dim=2 \(now 1\)",
    ),
    "a tensor that the target has not": (
        lambda m, h: h / 30,
        lambda m, h: h / (h > -9).float().sum().sqrt(),
        "semantic",
        r"21\.9089.* \(now 30\)",
    ),
    "detached": (lambda m, h: m.mix(h) + h.detach(), lambda m, h: m.mix(h) + h, "semantic", "stops the gradient"),
    "cast": (
        lambda m, h: (h.to(torch.bfloat16) @ m.mix.weight.to(torch.bfloat16)).float(),
        lambda m, h: h @ m.mix.weight,
        "precision",
        "float32",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_mechanism_and_the_repair_are_found(fault: str, tmp_path: Path) -> None:
    wrong, right, mechanism, repair = FAULTS[fault]
    run(tmp_path / "target", wrong)
    run(tmp_path / "reference", right)
    report = ns.diagnose(tmp_path / "target", tmp_path / "reference")
    assert report.verdict == "diverged"
    assert report.origin is not None
    assert report.origin.mechanism == mechanism, report.origin
    assert report.origin.repair is not None, report.origin
    assert re.search(repair, report.origin.repair), report.origin.repair
    carried = report.origin.details["carried"]  # the call is one statement; the loss and all gradients another
    # What cuts gradients off makes no tensor of its own: those behind it can't be made again as they were.
    tried = carried["gradients"] == (4 if fault == "detached" else carried["recorded_gradients"])
    assert (carried["complete"], carried["left"], tried) == (True, {}, True), carried


def test_two_equal_runs_have_nothing_to_diagnose(tmp_path: Path) -> None:
    run(tmp_path / "target", lambda m, h: h)
    run(tmp_path / "reference", lambda m, h: h)
    report = ns.diagnose(tmp_path / "target", tmp_path / "reference")
    assert report.verdict in ("identical", "equivalent")
    assert report.origin is None


def test_without_data_it_says_what_is_missing(tmp_path: Path) -> None:
    for name, value in (("target", 2.0), ("reference", 3.0)):
        with ns.capture(tmp_path / name, keep="stats"):
            torch.sigmoid(torch.ones(4, 4) * value)
    report = ns.diagnose(tmp_path / "target", tmp_path / "reference")
    assert report.origin is not None
    assert report.origin.mechanism == "semantic"  # the arguments, which the comparison knows, tell that much
    assert "was not kept" in report.origin.details["diagnosis"]["could_not"]


def test_a_repair_of_a_call_is_one_statement_and_the_loss_another(tmp_path: Path) -> None:
    def one(m: Any, h: torch.Tensor) -> torch.Tensor:
        return F.gelu(h, approximate="tanh")

    def two(m: Any, h: torch.Tensor) -> torch.Tensor:
        return F.gelu(h, approximate="tanh") * 1.01

    def right(m: Any, h: torch.Tensor) -> torch.Tensor:
        return F.gelu(h) * 1.0

    run(tmp_path / "reference", lambda m, h: F.gelu(h))
    run(tmp_path / "one", one)
    found = ns.diagnose(tmp_path / "one", tmp_path / "reference").origin
    assert found is not None
    assert "approximate='none'" in (found.repair or "")
    assert "that is the whole of it" in found.details["carried"]["sentence"]
    run(tmp_path / "with a product", right)
    run(tmp_path / "two", two)
    found = ns.diagnose(tmp_path / "two", tmp_path / "with a product").origin
    assert found is not None
    assert found.call == "Functional.gelu.0.forward"
    assert "approximate='none'" in (found.repair or "")  # right for this call, though it is not all
    carried = found.details["carried"]
    assert not carried["complete"]
    assert len(carried["left"]) == carried["gradients"] == 6
    assert carried["sentence"].endswith("what is left begins at Tensor.mul.0.forward")


def test_a_diagnosis_of_statistics_says_first_what_it_cannot_know_and_what_would_tell(tmp_path: Path) -> None:
    def captured(name: str, factor: float, **settings: Any) -> Path:
        with ns.capture(tmp_path / name, on_error="raise", **settings):
            torch.sigmoid(torch.tanh(torch.linspace(-1, 1, 64)) * factor)
        return tmp_path / name

    runs = [ns.open_run(captured("target", 2.0)), ns.open_run(captured("reference", 3.0))]
    for run in runs:  # as `numscope run` records them
        run.manifest |= {"job": "a job", "argv": ["train.py", "--name", "two words"]}
    report = ns.diagnose(*runs)
    found = report.details["unknowable"]
    assert found["commands"] == [
        *(
            f"numscope run '--tensors=Tensor.mul.0.*' --steps 0 --out {run.path}-tensors -- train.py --name 'two words'"
            for run in runs
        ),
        f"numscope diagnose {runs[0].path}-tensors {runs[1].path}-tensors",
    ]
    first, *_ = lines(report)
    assert first.startswith("why they differ cannot be known from statistics: the tensors of Tensor.mul.0.forward")
    assert "no hypothesis" not in "\n".join(lines(report))
    patterns = found["patterns"]
    again = ns.diagnose(captured("t2", 2.0, tensors=patterns), captured("r2", 3.0, tensors=patterns))
    assert again.origin is not None
    assert (again.origin.mechanism, "unknowable" in again.details) == ("semantic", False)


def test_the_command_prints_writes_and_returns_one(tmp_path: Path) -> None:
    wrong, right, *_ = FAULTS["gelu"]
    run(tmp_path / "target", wrong)
    run(tmp_path / "reference", right)
    files = ["--json", str(tmp_path / "report.json"), "--repro", str(tmp_path / "test_origin.py")]
    line = [sys.executable, "-m", "numscope", "diagnose", str(tmp_path / "target"), str(tmp_path / "reference"), *files]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "mechanism  semantic" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["format"] == "numscope.report/1"
    assert report["origin"]["mechanism"] == "semantic"
    assert "approximate='none'" in report["origin"]["repair"]
    text = (tmp_path / "test_origin.py").read_text()
    assert "numscope" not in text.partition('"""')[2].partition('"""')[2]
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_origin.py")]
    failed = subprocess.run(test, capture_output=True, text=True, cwd=tmp_path)
    assert failed.returncode == 1
    assert "relative error" in failed.stdout
    (tmp_path / "test_origin.py").write_text(text.replace("approximate='tanh'", "approximate='none'"))
    assert subprocess.run(test, capture_output=True, cwd=tmp_path).returncode == 0


def test_a_fault_that_hides_in_bfloat16_is_revealed_by_the_lift(tmp_path: Path) -> None:
    wrong, right, *_ = FAULTS["gelu"]
    run(tmp_path / "target", wrong, torch.bfloat16)
    run(tmp_path / "reference", right, torch.bfloat16)
    report = ns.diagnose(tmp_path / "target", tmp_path / "reference")
    assert report.verdict == "diverged"
    assert report.origin is not None
    assert report.origin.call == "Functional.gelu.0.forward"
    assert report.origin.mechanism == "semantic"
    assert "approximate='none'" in (report.origin.repair or "")


def test_a_module_of_which_nothing_is_known_inside_is_not_said_to_be_right(tmp_path: Path) -> None:
    class Local(nn.Module):  # defined inside a function: it can't be built again
        def __init__(self, eps: float) -> None:
            super().__init__()
            self.eps = eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()

    for name, eps in (("target", 1e-1), ("reference", 1e-6)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), Local(eps), nn.Linear(8, 2))
        with ns.capture(tmp_path / name, model, level="module", keep="tensors", on_error="raise"):
            model(torch.randn(3, 4)).sum().backward()
    report = ns.diagnose(tmp_path / "target", tmp_path / "reference")
    assert report.origin is not None
    assert (report.origin.call, report.origin.mechanism) == ("Module.1.Local.forward.0", "unknown")
    assert "defined inside a function" in report.origin.details["diagnosis"]["unit"]["could_not"]


def test_a_row_of_a_weight_that_is_off_is_no_lack_of_normalisation(tmp_path: Path) -> None:
    for name, shift in (("target", 0.01), ("reference", 0.0)):
        torch.manual_seed(0)
        model = nn.Linear(16, 8)
        with torch.no_grad():
            model.weight[3] += shift
        with ns.capture(tmp_path / name, model, keep="tensors", on_error="raise"):
            model(torch.randn(3, 16)).sum().backward()
    report = ns.diagnose(tmp_path / "target", tmp_path / "reference")
    assert report.origin is not None
    assert (report.origin.mechanism, report.origin.repair) == ("parameter", None)
