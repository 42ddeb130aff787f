"""Compiled regions seen inside: planted faults are named with their line, clean regions are right, and jobs are left alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from bench import compiled
from numscope.diagnose.regions.examine import Examined, examine
from numscope.diagnose.regions.recorded import RecordedRegions
from numscope.report.terminal.diagnosis import lines

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # Dynamo's own
]
HERE = Path(__file__).read_text().splitlines()


@torch.library.custom_op("numscope_test::scaled", mutates_args=())
def scaled_by_hand(x: torch.Tensor) -> torch.Tensor:
    """Scale as a kernel of the job's own would, wrongly."""
    return x * 1.52


scaled_by_hand.register_fake(torch.empty_like)
scaled_by_hand.register_autograd(lambda ctx, gradient: gradient * 1.5)


class OwnOperator(nn.Module):
    """Has a faster operator where it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        h = scaled_by_hand(h) if torch.compiler.is_compiling() else h * 1.5  # CUSTOM
        return x + self.down(h.tanh())


class Breaks(nn.Module):
    """Has a graph break before it writes to its memory through a dropout that drops nothing (pytorch issue 195422)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("memory", torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        if float(h.detach().abs().max()) > 1e6:
            h = h * 0.5
        memory = F.dropout(self.memory, 0.0, training=self.training)
        memory.mul_(0.5).add_(h.detach().float().mean(0))  # LOST
        return x + self.down(h + memory)


class Net(nn.Module):
    """A line for each planted fault."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.mean().float())  # WRITE
        h = F.silu(self.up(self.norm(x)))  # SILU
        h = h.tanh()  # TANH
        return x + self.down(h)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Have empty caches: what is planted is no part of their keys."""
    from torch._inductor.decomposition import fast_random_decomps

    for forget in (torch._dynamo.reset, torch._dynamo.utils.counters.clear, fast_random_decomps.cache_clear):
        forget()
    with compiled.cache():
        yield
    torch._dynamo.reset()
    fast_random_decomps.cache_clear()


def train(
    path: Path | None,
    call: Callable[[nn.Module], Any],
    dtype: torch.dtype = torch.float32,
    net: Callable[[], nn.Module] = Net,
) -> list[float]:
    torch.manual_seed(0)
    model = net().to(dtype)
    step = call(model)
    losses = []
    capture = ns.capture(path, model, level="module", compiled="inside", on_error="raise") if path is not None else None
    if capture is not None:
        capture.start()
    for _ in range(2):
        loss = step(torch.randn(4, 16, dtype=dtype)).float().pow(2).mean()
        loss.backward()
        losses.append(loss.item() + sum(float(p.grad.double().sum()) for p in model.parameters()))
        if capture is not None:
            capture.step()
    if capture is not None:
        capture.close()
    return losses


def look(path: Path) -> Examined:
    return examine(RecordedRegions(ns.open_run(path), 0))


def line(mark: str) -> int:
    return next(number for number, text in enumerate(HERE, 1) if text.endswith(f"# {mark}"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clean_regions_are_right_and_run_as_without_a_look(tmp_path: Path, dtype: torch.dtype) -> None:
    plain = train(None, torch.compile, dtype)
    counted = dict(torch._dynamo.utils.counters["stats"]), len(torch._dynamo.utils.get_compilation_metrics())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    with compiled.cache():
        assert train(tmp_path / "run", torch.compile, dtype) == plain
    assert counted[0] == dict(torch._dynamo.utils.counters["stats"])
    found = look(tmp_path / "run")
    assert found.wrong == []
    assert found.lacks == ()
    assert found.regions == ("0/0 forward", "0/0 backward")
    assert len(found.findings) >= 6
    train(tmp_path / "eager", lambda model: model, dtype)
    report = ns.diagnose(tmp_path / "run", tmp_path / "eager")
    assert report.verdict == "equivalent"
    assert any("kernels held against float64" in text for text in lines(report))


def scaled(name: str, factor: float) -> Callable[..., Any]:
    def decomposed(*args: Any) -> Any:
        if name == "silu":
            return args[0] * torch.sigmoid(args[0]) * factor
        gradient, output = args
        return gradient * (1 - output * output * factor)

    return decomposed


def test_a_wrong_decomposition_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.decomposition import decompositions

    monkeypatch.setitem(decompositions, torch.ops.aten.silu.default, scaled("silu", 1.01))
    train(tmp_path / "run", torch.compile)
    [found] = look(tmp_path / "run").wrong
    assert (found.kind, found.name, found.place["line"]) == ("decomposition", "aten.silu", line("SILU"))
    assert "is off by 1e-02 in any precision" in found.sentence()
    train(tmp_path / "eager", lambda model: model)
    report = ns.diagnose(tmp_path / "run", tmp_path / "eager")
    assert report.verdict == "diverged"
    assert report.origin.source.line == line("SILU")
    assert report.origin.mechanism == "device"


def test_a_wrong_decomposition_of_a_gradient_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.decomposition import decompositions

    monkeypatch.setitem(decompositions, torch.ops.aten.tanh_backward.default, scaled("tanh_backward", 1.02))
    train(tmp_path / "run", torch.compile)
    [found] = look(tmp_path / "run").wrong
    assert (found.region, found.place["line"]) == ("0/0 backward", line("TANH"))


def test_a_wrong_lowering_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.lowering import lowerings

    right = lowerings[torch.ops.aten.tanh.default]
    multiply = lowerings[torch.ops.aten.mul.Tensor]
    monkeypatch.setitem(lowerings, torch.ops.aten.tanh.default, lambda x: multiply(right(x), 1.03))
    train(tmp_path / "run", torch.compile)
    found = look(tmp_path / "run").wrong
    assert {one.kind for one in found} == {"kernel"}
    assert found[0].place["line"] == line("TANH")
    assert "aten.tanh" in found[0].operators


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_dropped_write_is_named(tmp_path: Path, where: str) -> None:
    """A backend drops it from the program, or a pass of Inductor's from its graph."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    def drop(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target in ("add_", torch.ops.aten.copy_.default):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        drop(module.graph)
        module.recompile()
        return compile_fx(module, inputs)

    early = where == "before"
    with config.patch(post_grad_custom_post_pass=None if early else drop):
        train(tmp_path / "run", lambda model: torch.compile(model, backend=backend if early else "inductor"))
    found = look(tmp_path / "run").wrong
    assert [(one.kind, one.place["line"]) for one in found] == [("write", line("WRITE"))]


def test_a_wrong_operator_of_the_jobs_is_what_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is diagnosed, the job's operators are not registered."""
    from numscope.diagnose.regions import graph

    train(tmp_path / "run", torch.compile, net=OwnOperator)
    train(tmp_path / "eager", lambda model: model, net=OwnOperator)
    known = graph.registered
    monkeypatch.setattr(graph, "registered", lambda target: None if "numscope_test" in target else known(target))
    report = ns.diagnose(tmp_path / "run", tmp_path / "eager")
    assert report.verdict == "diverged"
    assert report.origin.source.line == line("CUSTOM")
    assert report.origin.mechanism == "device"
    assert "the custom operator numscope_test.scaled.default" in report.origin.reason


def test_a_write_that_is_lost_behind_a_graph_break_is_named(tmp_path: Path) -> None:
    probe = torch.ones(2)
    torch.compile(lambda x: F.dropout(x, 0.0, training=True).add_(1), backend="aot_eager")(probe)
    if probe.sum() != 2:
        pytest.skip("this torch does not lose it")
    torch._dynamo.reset()
    train(tmp_path / "run", torch.compile, net=Breaks)
    found = look(tmp_path / "run")
    assert len([name for name in found.regions if name.endswith("forward")]) == 2
    assert {(one.kind, one.place["line"]) for one in found.wrong} == {("write", line("LOST"))}
    train(tmp_path / "eager", lambda model: model, net=Breaks)
    report = ns.compare(tmp_path / "run", tmp_path / "eager").report
    assert report.origin.source.line == line("LOST")


def test_elided_casts_are_no_bug(tmp_path: Path) -> None:
    """The rotation of pytorch issue 182225: bfloat16, products that eager rounds and a fused kernel does not."""

    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return (x * cos + turned * sin).exp().log1p()

    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 7, 64, generator=generator).bfloat16() for _ in range(3)]
    with ns.capture(tmp_path / "run", None, level="module", compiled="inside", on_error="raise") as capture:
        torch.compile(rotate)(*given)
        capture.step()
    found = look(tmp_path / "run")
    assert found.wrong == []
    assert found.lacks == ()
    assert [one.sentence().partition(" in fused")[0] for one in found.findings] == ["casts elided"]
