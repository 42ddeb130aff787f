"""Runs that differ in what they did, not in what is right: longer loops, other accumulation, threads, ranks, drift."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import numscope as ns


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + 0.3 * torch.tanh(self.mix(self.norm(x)))


class Deep(nn.Module):
    def __init__(self, depth: int, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList(Layer(width) for _ in range(depth)), nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def perturbed(model: nn.Module, size: float = 1e-7) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + size * torch.randn(parameter.shape, generator=generator))
    return model


def train(
    path: Path, model: nn.Module, *, steps: int = 2, halves: int = 1, lr: float = 0.05, width: int = 16, **settings: Any
) -> Path:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    with ns.capture(path, model, **settings) as capture:
        for _ in range(steps):
            x = torch.randn(8, width, generator=generator)
            y = torch.randint(4, (8,), generator=generator)
            optimizer.zero_grad()
            for part, labels in zip(x.chunk(halves), y.chunk(halves)):
                (F.cross_entropy(model(part), labels) / halves).backward()
            optimizer.step()
            capture.step()
    return path


def test_drift_over_three_hundred_layers_is_no_origin(tmp_path):
    a = train(tmp_path / "a", perturbed(Deep(300)), steps=1)
    comparison = ns.compare(a, train(tmp_path / "b", Deep(300), steps=1))
    assert comparison.verdict == "equivalent", comparison.origin.reason


def test_chaotic_growth_over_steps_is_no_origin_and_a_fault_in_it_still_is(tmp_path):
    reference = train(tmp_path / "b", Deep(6), steps=14, lr=2.0, level="module")
    a = train(tmp_path / "a", perturbed(Deep(6)), steps=14, lr=2.0, level="module")
    comparison = ns.compare(a, reference)
    assert comparison.verdict == "equivalent", comparison.origin.reason
    worst = [
        pc.max(pc.if_else(pc.equal(comparison.calls["step"], step), comparison.calls["error_out"], 0.0)).as_py()
        for step in (0, 13)
    ]
    assert worst[1] > 100 * worst[0]
    wrong = perturbed(Deep(6))
    wrong.layers[3].norm.eps = 1e-2
    comparison = ns.compare(train(tmp_path / "c", wrong, steps=14, lr=2.0, level="module"), reference)
    assert (comparison.origin.step, comparison.origin.module) == (0, "layers.3.norm")


def test_other_numbers_of_threads_are_identical_or_equivalent(tmp_path):
    before = torch.get_num_threads()
    try:
        for name, threads in (("a", 1), ("b", 2)):
            torch.set_num_threads(threads)
            train(tmp_path / name, Deep(2, width=256), width=256)
    finally:
        torch.set_num_threads(before)
    assert ns.compare(tmp_path / "a", tmp_path / "b").verdict in ("identical", "equivalent")


@pytest.mark.parametrize("keep", ["stats", "tensors"])
def test_accumulated_halves_are_the_whole_batch(tmp_path, keep):
    whole = train(tmp_path / "b", Deep(2), keep=keep)
    comparison = ns.compare(train(tmp_path / "a", Deep(2), halves=2, keep=keep), whole)
    assert comparison.verdict == "equivalent", comparison.origin.reason
    assert comparison.report.coverage["unmatched_target"] > 0


def generate(path: Path, length: int, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    embed, cell, head = nn.Embedding(12, 8), nn.GRUCell(8, 8), nn.Linear(8, 12)
    state, token = torch.zeros(2, 8), torch.tensor([1, 2])
    with ns.capture(path, {"embed": embed, "cell": cell, "head": head}), torch.no_grad():
        for _ in range(length):
            state = cell(embed(token) * scale, state)
            token = head(state).argmax(-1)
    return path


def test_a_generation_loop_that_goes_on_longer_is_compared_as_far_as_both_go(tmp_path):
    long, short = generate(tmp_path / "a", 7), generate(tmp_path / "b", 4)
    comparison = ns.compare(long, short)
    assert comparison.verdict == "equivalent"
    assert comparison.report.coverage["unmatched_target"] > 0 == comparison.report.coverage["unmatched_reference"]
    assert comparison.report.prefix["calls"] == comparison.report.coverage["matched"]
    wrong = ns.compare(generate(tmp_path / "c", 7, scale=1.1), short)
    assert wrong.origin.call == "Tensor.mul.0.forward"


def test_ranks_that_only_one_run_has_are_counted_and_the_others_compared(tmp_path):
    a, b = train(tmp_path / "a", Deep(1)), train(tmp_path / "b", Deep(1))
    shutil.copytree(a / "rank0", a / "rank1")
    comparison = ns.compare(a, b)
    assert comparison.report.coverage["skipped"] == {"steps of ranks that only the target has": 2}
    assert set(comparison.calls["rank"].to_pylist()) == {0}
    assert ns.compare(a, b, ranks=1).verdict == "incomparable"


def command(*arguments: Any) -> str:
    line = [sys.executable, "-m", "numscope", "compare", *map(str, arguments)]
    wide = {**os.environ, "COLUMNS": "120"}  # no row is folded
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=wide)
    assert done.stderr == ""
    return done.stdout


def test_the_command_explains_the_alignment_and_chooses_rows(tmp_path):
    class Renamed(Deep):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return torch.addmm(self.head.bias, x, self.head.weight.t())

    a, b = train(tmp_path / "a", Renamed(2)), train(tmp_path / "b", Deep(2))
    told = command(a, b, "--explain-alignment")
    assert "calls are paired with the same name at the same place" in told
    assert "Torch.addmm.0.forward  ↔  Functional.linear.2.forward  (same values)" in told
    assert "Tensor.t.0.forward  ↔  —  (no counterpart)" in told
    wrong = Deep(2)
    wrong.layers[1].norm.eps = 1e-2
    c = train(tmp_path / "c", wrong)
    one, three = command(c, b, "--top", 1), command(c, b, "--top", 3)
    assert len(three.splitlines()) > len(one.splitlines()) + 2
    only = command(c, b, "--only", "origin", "--sort", "order")
    rows = [line.split() for line in only.splitlines() if ".forward." in line or ".backward." in line]
    table = [row for row in rows if row[-1] in ("origin", "inherited", "equivalent")]
    assert table
    assert all(row[-1] == "origin" for row in table)
    assert "step 1" in command(c, b, "--step", 1, "--rank", 0).splitlines()[0]
