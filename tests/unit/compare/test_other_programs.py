"""Evidence that needs no error: a call of another argument, or of another dtype, in models that rounding keeps apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns

WIDTH, LAYERS, WRONG = 64, 5, 2


class Layer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fault = fault
        if fault == "eps":
            self.norm.eps = 1.3e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.up(self.norm(x))
        shares = scores.softmax(-1) if self.fault == "softmax" else scores.float().softmax(-1).to(x.dtype)
        return x + self.down(F.gelu(shares * WIDTH))


def run(folder: Path, fault: str = "", dtype: torch.dtype = torch.bfloat16, everywhere: bool = False) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(fault if everywhere or number == WRONG else "") for number in range(LAYERS)))
    x = torch.randn(8, 16, WIDTH)
    model = model.to(dtype)
    with ns.capture(folder, model, on_error="raise") as cap:
        model(x.to(dtype)).float().square().mean().backward()
        cap.step()
    return folder


@pytest.mark.parametrize(("fault", "op"), [("softmax", "softmax"), ("eps", "layer_norm")])
def test_between_two_precisions_a_call_of_another_program_is_the_origin(tmp_path: Path, fault: str, op: str) -> None:
    reference = run(tmp_path / "reference", dtype=torch.float32)
    assert ns.compare(run(tmp_path / "right"), reference).verdict == "equivalent"
    found = ns.compare(run(tmp_path / "wrong", fault), reference)
    assert found.origin is not None
    assert (found.origin.module.partition(".")[0], found.origin.call.split(".")[1]) == (str(WRONG), op)
    assert found.origin.mechanism == ("precision" if fault == "softmax" else "semantic")


def test_where_all_siblings_compute_alike_their_dtype_proves_nothing(tmp_path: Path) -> None:
    reference = run(tmp_path / "reference", dtype=torch.float32)
    assert ns.compare(run(tmp_path / "wrong", "softmax", everywhere=True), reference).verdict == "equivalent"


def test_a_backward_call_is_not_named_for_the_arguments_of_its_forward_call(tmp_path: Path) -> None:
    for name, smoothing in (("target", 0.01), ("reference", 0.0)):
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, WIDTH).to(torch.float32 if smoothing else torch.bfloat16)
        x, wanted = torch.randn(32, WIDTH), torch.randint(WIDTH, (32,))
        with ns.capture(tmp_path / name, model, on_error="raise") as cap:
            logits = model(x.to(model.weight.dtype)).float()
            F.cross_entropy(logits, wanted, label_smoothing=smoothing).backward()
            cap.step()
    found = ns.compare(tmp_path / "target", tmp_path / "reference")
    assert found.origin is not None
    assert found.origin.call == "Functional.cross_entropy.0.forward"
