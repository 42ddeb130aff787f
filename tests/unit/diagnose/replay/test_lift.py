"""The lift test tells a difference in meaning from a cast and from an order of sums; the floor is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import numscope as ns
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import Subgraph, upstream
from numscope.diagnose.replay.lift import Lift, lift
from numscope.diagnose.replay.measures import relative_error
from numscope.diagnose.replay.noise_floor import noise_floor, perturb

torch.manual_seed(0)
X = torch.randn(64, 128)
W = torch.randn(128, 128) / 11


def rms(x: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)


Pair = tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]
PAIRS: dict[str, tuple[str, Pair]] = {
    "gelu": ("semantic", (lambda x, w: F.gelu(x, approximate="tanh"), lambda x, w: F.gelu(x))),
    "eps": (
        "semantic",
        (lambda x, w: F.layer_norm(x, (128,), eps=1e-3), lambda x, w: F.layer_norm(x, (128,), eps=1e-5)),
    ),
    "cast": ("precision", (lambda x, w: rms(x).to(x.dtype) * w[0], lambda x, w: (rms(x) * w[0].float()).to(x.dtype))),
    "sums": ("order", (lambda x, w: x[:, :64] @ w[:64] + x[:, 64:] @ w[64:], lambda x, w: x @ w)),
}


def subgraph(path: Path, work: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> Subgraph:
    made: list[torch.Tensor] = []
    with ns.capture(path, None, keep="tensors", on_error="raise") as cap:
        made.append(work(x, w))
        cap.save("result", made[0])
    graph = StepGraph(ns.open_run(path), 0, 0)
    output = next(iter(graph.outputs(graph.by_name["Save.result.0.forward"].order).values()))
    return upstream(graph, output, ())


def figures(tmp_path: Path, name: str, dtype: torch.dtype) -> Lift:
    a, b = PAIRS[name][1]
    x, w = X.to(dtype), W.to(dtype)
    return lift(subgraph(tmp_path / "a", a, x, w), subgraph(tmp_path / "b", b, x, w), {}, {})


@pytest.mark.parametrize("name", list(PAIRS))
def test_in_bfloat16_the_mechanism_is_told_where_no_threshold_can(name: str, tmp_path: Path) -> None:
    found = figures(tmp_path, name, torch.bfloat16)
    assert found.mechanism() == PAIRS[name][0], found
    assert found.target is not None
    assert found.reference is not None
    assert found.target.reproduced
    assert found.reference.reproduced
    assert not found.target.is_off(found.reference)
    assert not found.reference.is_off(found.target)


@pytest.mark.parametrize("name", ["gelu", "eps", "sums"])
def test_in_float32_too(name: str, tmp_path: Path) -> None:
    assert figures(tmp_path, name, torch.float32).mechanism() == PAIRS[name][0]


def test_the_floor_is_what_an_ulp_does(tmp_path: Path) -> None:
    product = noise_floor(lambda v: v[0] @ v[1], {0: X, 1: W})
    assert 1e-8 < product < 1e-6
    steep = noise_floor(lambda v: v[0] - 1, {0: torch.ones(1000) + 1e-4})
    assert steep > 100 * product


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_a_perturbed_element_is_a_neighbour(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    moved = perturb(tensor, torch.Generator().manual_seed(0))
    up, down = torch.nextafter(tensor, tensor + torch.inf), torch.nextafter(tensor, tensor - torch.inf)
    fixed = (moved == tensor) | (moved == up) | (moved == down)
    assert bool(fixed.all())


@given(st.floats(-100, 100), st.floats(1e-3, 1e3))
def test_relative_is_scale_free_and_exact(shift: float, scale: float) -> None:
    base = torch.linspace(1, 2, 50, dtype=torch.float64)
    assert relative_error(base * (1 + 1e-3), base) == pytest.approx(1e-3, rel=1e-9)
    assert relative_error(base * scale * 1.5, base * scale) == pytest.approx(0.5)
    assert relative_error(base, base) == 0
    assert relative_error(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])) == 0
    assert relative_error(torch.tensor([1.0, float("inf")]), torch.tensor([1.0, 1.0])) == float("inf")
