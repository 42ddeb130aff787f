"""Runs that recorded no inputs: what came in is taken to be what ran before, and the report says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import numscope as ns
from numscope.store.formats.detect import open_dump
from numscope.store.formats.foreign import write_run


class Net(nn.Module):
    def __init__(self, spoil: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16, eps=1e-3 if spoil == "eps" and i == 1 else 1e-5) for i in range(3))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.spoil = spoil

    def forward(self, tokens):
        x = self.embed(tokens)
        for place, (norm, layer) in enumerate(zip(self.norms, self.layers)):
            h = layer(norm(x))
            if self.spoil == "scale" and place == 1:
                h = h.mul(1.1)
            x = x + F.gelu(h)
        offset = torch.arange(16.0)
        if self.spoil == "draw":
            torch.manual_seed(1)
        return x * torch.softmax(torch.randn(16) + offset / 16, -1)


def trained(path: Path, model: nn.Module, slots: str, level: str = "mix", steps: int = 2) -> Path:
    torch.manual_seed(7)
    tokens = torch.randint(32, (steps, 4, 8), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with ns.capture(path, model, slots=slots, level=level) as capture:
        for batch in tokens:
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            capture.step()
    return path


@pytest.mark.parametrize("level", ["module", "api", "mix"])
def test_what_runs_after_the_origin_is_inherited(tmp_path, level):
    a = trained(tmp_path / "a", Net("eps"), "output", level)
    b = trained(tmp_path / "b", Net(), "output", level)
    comparison = ns.compare(a, b)
    assert comparison.verdict == "diverged"
    origin = comparison.origin
    assert origin.module == "norms.1"
    assert len(comparison.suspects) == 1
    assert "inputs not recorded" in origin.reason
    assert "inputs identical" not in origin.reason
    assert comparison.report.counts["inherited"] > 20


@pytest.mark.parametrize("slots", [("output", "both"), ("both", "output")])
def test_one_side_with_inputs_and_one_without(tmp_path, slots):
    a, b = trained(tmp_path / "a", Net("eps"), slots[0]), trained(tmp_path / "b", Net(), slots[1])
    comparison = ns.compare(a, b)
    assert [suspect.module for suspect in comparison.suspects] == ["norms.1"]
    assert ns.compare(trained(tmp_path / "c", Net(), slots[0]), b).origin is None


def test_rounding_is_equivalent(tmp_path):
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-7 * torch.randn_like(parameter))
    comparison = ns.compare(trained(tmp_path / "a", model, "output"), trained(tmp_path / "b", Net(), "output"))
    assert comparison.verdict == "equivalent", comparison.report.reason


def test_a_call_that_one_side_alone_has_is_named_before_the_first_output_that_is_off(tmp_path):
    spoilt, plain = Net("scale"), Net()
    extra = ns.compare(trained(tmp_path / "a", spoilt, "output"), trained(tmp_path / "b", plain, "output")).origin
    assert (extra.kind, extra.call) == ("extra", "Tensor.mul.0.forward")
    missing = ns.compare(tmp_path / "b", tmp_path / "a").origin
    assert (missing.kind, missing.call) == ("missing", "Tensor.mul.0.forward")
    assert "inputs not recorded" in missing.reason


def test_a_source_is_an_origin_of_its_own(tmp_path):
    a = trained(tmp_path / "a", Net("draw"), "output", steps=1)
    b = trained(tmp_path / "b", Net(), "output", steps=1)
    comparison = ns.compare(a, b)
    assert [suspect.call for suspect in comparison.suspects] == ["Torch.randn.0.forward"]
    assert "it has no inputs" in comparison.origin.reason


def saving_hook_folder(path: Path, spoilt: int) -> Path:
    """Write what Paddle's saving hook writes of five linear layers: outputs and parameters' gradients, no inputs."""
    rng = np.random.default_rng(0)
    (path / "tensors/rank_0").mkdir(parents=True)
    (path / "grads/rank_0").mkdir(parents=True)
    x, index = rng.standard_normal((8, 16)).astype("float32"), 0
    for step in range(2):
        for layer in range(5):
            x = np.tanh(x @ rng.standard_normal((16, 16)).astype("float32"))
            x = x * np.float32(1.01) if (step, layer) == (0, spoilt) else x
            name = f"tensor_idx_{index}_layer_class_Linear_layer_name_linear_{layer}_micro_step_{step}.npy"
            np.save(path / "tensors/rank_0" / name, x)
            gradient = x.T @ rng.standard_normal((8, 16)).astype("float32")
            parameter = "scale" if layer == 4 else f"linear_{layer}.w_0"
            grad = f"grad_idx_{index}_of_param_name_{parameter}_micro_step_{step}.npy"
            np.save(path / "grads/rank_0" / grad, gradient)
            index += 1
    return path


def test_an_imported_folder_of_outputs_has_one_origin(tmp_path):
    for name, spoilt in (("a", 1), ("b", -1)):
        write_run(tmp_path / name, open_dump(saving_hook_folder(tmp_path / f"{name}.hook", spoilt)), False)
    comparison = ns.compare(tmp_path / "a", tmp_path / "b")
    assert [suspect.module for suspect in comparison.suspects] == ["linear_1"]
    assert "inputs not recorded" in comparison.origin.reason
    assert comparison.report.counts["inherited"] > 10


def test_diagnose_claims_nothing_about_inputs_that_were_not_recorded(tmp_path):
    a, b = trained(tmp_path / "a", Net("eps"), "output"), trained(tmp_path / "b", Net(), "output")
    origin = ns.diagnose(a, b).origin
    assert origin.mechanism == "semantic"  # its eps differs: an argument, and those are recorded
    assert origin.repair is None
    assert "not recorded" in origin.details["diagnosis"]["could_not"]
