"""Two runs of real small models: the verdict, the origin with its line, and the command."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import numscope as ns
from numscope.testing import assert_equivalent, assert_identical


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.approximate = "none"

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        weights = F.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
        x = x + self.out(weights @ v)
        return x + self.down(F.gelu(self.up(x), approximate=self.approximate))  # the line with gelu


class Net(nn.Module):
    def __init__(self, depth: int = 2, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 32)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(path: Path, model: nn.Module, steps: int = 2, optimizer=None, autocast: bool = False, **settings) -> Path:
    tokens = torch.randint(32, (steps, 4, 8), generator=torch.Generator().manual_seed(1))
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    with ns.capture(path, model, **settings) as capture:
        for batch in tokens:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = model(batch)
            F.cross_entropy(logits.flatten(0, 1).float(), batch.roll(-1, 1).flatten()).backward()
            optimizer.step()
            capture.step()
    return path


def perturbed(model: nn.Module) -> nn.Module:
    """Return the model with every parameter off by an ulp or so."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-7 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
def test_the_same_training_twice_is_identical(tmp_path, level):
    a, b = (train(tmp_path / name, Net(), level=level) for name in "ab")
    assert_identical(a, b)
    assert ns.compare(a, b).report.prefix["calls"] == ns.compare(a, b).report.coverage["target"]


@pytest.mark.parametrize("keep", ["stats", "tensors"])
def test_a_gelu_of_another_form_is_named_with_its_line_and_argument(tmp_path, keep):
    wrong = Net()
    wrong.blocks[1].approximate = "tanh"
    comparison = ns.compare(train(tmp_path / "a", wrong, keep=keep), train(tmp_path / "b", Net(), keep=keep))
    origin = comparison.origin
    assert comparison.verdict == "diverged"
    assert (origin.call, origin.module, origin.kind) == ("Functional.gelu.1.forward", "blocks.1", "api")
    assert (origin.step, origin.rank, origin.phase, origin.mechanism) == (0, 0, "forward", "semantic")
    assert "the line with gelu" in origin.source.code
    assert "inputs identical" in origin.reason
    assert "approximate 'tanh' against 'none'" in origin.reason
    assert comparison.report.prefix["last"] == "Functional.linear.6.forward"


@pytest.mark.parametrize("keep", ["stats", "tensors"])
@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_what_follows_from_the_origin_is_inherited_in_every_phase_and_step(tmp_path, level, keep):
    wrong = Net()
    wrong.blocks[1].approximate = "tanh"
    settings = {"level": level, "keep": keep}
    comparison = ns.compare(train(tmp_path / "a", wrong, **settings), train(tmp_path / "b", Net(), **settings))
    # What rounding alone does to this model stays well below that.
    off = comparison.pairs.filter(pc.greater(comparison.pairs["relative_l2"], 1e-5))
    assert set(off["verdict"].to_pylist()) == {"origin", "inherited"}
    assert set(off["step"].to_pylist()) == {0, 1}
    calls = comparison.calls.filter(pc.greater(comparison.calls["error_out"], 1e-5))
    assert set(calls["verdict"].to_pylist()) == {"origin", "inherited"}
    assert {"forward", "backward", "optimizer"} <= set(calls["phase"].to_pylist())


def test_rounding_before_the_origin_stays_equivalent(tmp_path):
    wrong = perturbed(Net())
    wrong.blocks[1].approximate = "tanh"
    comparison = ns.compare(train(tmp_path / "a", wrong, steps=1), train(tmp_path / "b", Net(), steps=1))
    assert comparison.origin.call == "Functional.gelu.1.forward"
    names = comparison.calls["target_name"].to_pylist()
    verdicts = dict(zip(names, comparison.calls["verdict"].to_pylist()))
    assert verdicts["Functional.linear.6.forward"] == verdicts["Module.blocks.0.Block.forward.0"] == "equivalent"
    assert verdicts["Module.blocks.1.Block.forward.0"] == verdicts["Module.blocks.0.Block.backward.0"] == "inherited"


@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
def test_parameters_off_by_an_ulp_are_equivalent_over_steps(tmp_path, level):
    a = train(tmp_path / "a", perturbed(Net()), steps=5, level=level)
    assert_equivalent(a, train(tmp_path / "b", Net(), steps=5, level=level))


def test_drift_over_many_layers_is_no_origin(tmp_path):
    a = train(tmp_path / "a", perturbed(Net(depth=60)), steps=1)
    assert_equivalent(a, train(tmp_path / "b", Net(depth=60), steps=1))


def test_float32_against_bf16_autocast_is_equivalent(tmp_path):
    a = train(tmp_path / "a", Net(), steps=2, autocast=True)
    assert_equivalent(a, train(tmp_path / "b", Net(), steps=2))


def test_a_bug_is_found_between_two_precisions_too(tmp_path):
    wrong = Net()
    wrong.blocks[0].norm.eps = 0.5
    comparison = ns.compare(train(tmp_path / "a", wrong, autocast=True), train(tmp_path / "b", Net()))
    assert comparison.origin.call == "Functional.layer_norm.0.forward"


def test_an_optimizer_with_another_decay_is_named(tmp_path):
    models = Net(), Net()
    first = torch.optim.AdamW(models[0].parameters(), lr=1e-2, weight_decay=0.1)
    second = torch.optim.AdamW(models[1].parameters(), lr=1e-2, weight_decay=0.01)
    a = train(tmp_path / "a", models[0], optimizer=first)
    comparison = ns.compare(a, train(tmp_path / "b", models[1], optimizer=second))
    assert (comparison.origin.kind, comparison.origin.call) == ("optimizer", "Optimizer.AdamW.step.0")
    assert "weight_decay 0.1 against 0.01" in comparison.origin.reason


def test_a_parameter_that_is_frozen_on_one_side_is_named_in_its_first_step(tmp_path):
    frozen = Net()
    frozen.blocks[0].up.weight.requires_grad_(False)
    comparison = ns.compare(train(tmp_path / "a", frozen), train(tmp_path / "b", Net()))
    assert (comparison.origin.call, comparison.origin.step) == ("Functional.linear.2.backward", 0)
    assert "the reference has a gradient for blocks.0.up.weight here, the target has none" in comparison.origin.reason


def test_a_parameter_that_one_optimizer_does_not_have_is_named_at_its_step(tmp_path):
    models = Net(), Net()
    fewer = torch.optim.SGD([p for name, p in models[0].named_parameters() if "head" not in name], lr=0.1)
    every = torch.optim.SGD(models[1].parameters(), lr=0.1)
    a = train(tmp_path / "a", models[0], optimizer=fewer)
    comparison = ns.compare(a, train(tmp_path / "b", models[1], optimizer=every))
    assert (comparison.origin.call, comparison.origin.step) == ("Optimizer.SGD.step.0", 0)
    assert "only the reference has head.weight" in comparison.origin.reason


def test_a_model_in_bfloat16_against_float32_is_equivalent():
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))

    class Cast(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            torch.manual_seed(0)
            self.dtype, self.inner = dtype, nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(dtype)

        def forward(self, x):
            return self.inner(x.to(self.dtype)).float()

    comparison = ns.compare_models(Cast(torch.bfloat16), Cast(torch.float32), x)
    assert comparison.verdict == "equivalent", comparison.origin.reason


def test_two_models_in_one_process():
    model = Net()
    same = ns.compare_models(model, copy.deepcopy(model), torch.arange(8).reshape(1, 8))
    assert same.verdict == "identical"
    wrong = copy.deepcopy(model)
    wrong.blocks[0].norm.eps = 1e-2
    before = torch.get_rng_state()
    comparison = ns.compare_models(wrong, model, torch.arange(8).reshape(1, 8))
    assert comparison.origin.call == "Functional.layer_norm.0.forward"
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "backward" in comparison.calls["phase"].to_pylist()
    name = comparison.pairs["target_name"][0].as_py()
    assert comparison.target.tensor(name).size > 0  # the runs are there as long as the comparison is


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "numscope", "compare", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_command_says_it_all(tmp_path):
    wrong = Net()
    wrong.blocks[1].norm.eps = 1e-3
    a, b = train(tmp_path / "a", wrong), train(tmp_path / "b", Net())
    files = {name: tmp_path / f"r.{name}" for name in ("json", "csv", "parquet", "xlsx")}
    done = command(a, b, *(part for name, path in files.items() for part in (f"--{name}", path)))
    assert done.returncode == 1
    assert done.stderr == ""
    assert "DIVERGED" in done.stdout.splitlines()[0]
    assert "eps 0.001 against 1e-05" in done.stdout
    assert "\x1b" not in done.stdout
    assert json.loads(files["json"].read_text())["origin"]["call"] == "Functional.layer_norm.1.forward"
    assert all(path.stat().st_size > 0 for path in files.values())
    assert command(b, b).returncode == 0


def test_what_cannot_be_done_is_one_line_and_status_2(tmp_path):
    a = train(tmp_path / "a", Net(), steps=1)
    for done, said in (
        (command(a, tmp_path / "nowhere"), "nowhere"),
        (command(a, a, "--json", tmp_path), "is a directory"),
        (command(a, a, "--step", 7), ""),
        (command(a, a, "--map", tmp_path / "m.toml"), "m.toml"),
    ):
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) <= 1


def test_thresholds_for_ci(tmp_path):
    a, b = train(tmp_path / "a", perturbed(Net()), steps=1), train(tmp_path / "b", Net(), steps=1)
    assert command(a, b).returncode == 0
    (tmp_path / "ci.toml").write_text("[compare]\nmax_relative = 1e-9\n")
    done = command(a, b, "--thresholds", tmp_path / "ci.toml")
    assert done.returncode == 1
    assert "the limit is 1e-09" in done.stdout


def test_the_fixture_captures_and_the_assertion_says_why(tmp_path):
    (tmp_path / "test_it.py").write_text(
        """
import torch
from numscope.testing import assert_equivalent, assert_identical

def run(capture, name, eps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, eps=eps))
    with capture(name, model) as recording:
        model(torch.ones(2, 4)).sum().backward()
        recording.step()

def test_same(numscope_capture):
    for name in ("a", "b"):
        run(numscope_capture, name, 1e-5)
    assert_identical(numscope_capture.path("a"), numscope_capture.path("b"))

def test_other(numscope_capture):
    run(numscope_capture, "a", 1e-5)
    run(numscope_capture, "b", 1e-1)
    assert_equivalent(numscope_capture.path("a"), numscope_capture.path("b"))
"""
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "numscope.testing.plugin",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "argument eps 1e-05 against 0.1" in " ".join(done.stdout.replace("E  ", " ").split())


def test_ray_gives_the_same_answer_over_ranks_and_steps(tmp_path):
    ray = pytest.importorskip("ray")
    wrong = Net()
    wrong.blocks[1].norm.eps = 1e-3
    a, b = train(tmp_path / "a", wrong, steps=2), train(tmp_path / "b", Net(), steps=2)
    for run in (a, b):  # a second rank, which does the same
        shutil.copytree(run / "rank0", run / "rank1")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        try:
            far = ns.compare(a, b, engine="ray")
        finally:
            ray.shutdown()
    near = ns.compare(a, b)
    assert far.report.to_dict() == near.report.to_dict()
    assert far.calls.equals(near.calls)
    assert set(zip(near.calls["step"].to_pylist(), near.calls["rank"].to_pylist())) == {(0, 0), (0, 1), (1, 0), (1, 1)}
