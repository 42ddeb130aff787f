"""A recorded call can be made again, to the bit, forward and backward, and in other precisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.diagnose.recorded.invocation import CannotReplay, invocation_of, parameters
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import upstream
from numscope.diagnose.replay.calls import replay


def recorded(path: Path, work: Callable[[], object], model: nn.Module | None = None) -> StepGraph:
    with ns.capture(path / "run", model, keep="tensors", on_error="raise"):
        work()
    return StepGraph(ns.open_run(path / "run"), 0, 0)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "index by slices and a tensor": lambda x: x[:, torch.tensor([0, 2]), None],
    "index by an ellipsis": lambda x: x[..., 1],
    "index by a list": lambda x: x[[1, 0]],
    "index by numbers": lambda x: x[1, 0],
    "boolean mask": lambda x: x.masked_fill(x > 0, float("-inf")),
    "cast": lambda x: x.to(torch.bfloat16),
    "method with a dtype": lambda x: x.sum(-1, dtype=torch.float64),
    "list of tensors": lambda x: torch.cat([x, x * 2], dim=1),
    "several outputs": lambda x: x.chunk(2, dim=-1),
    "named outputs": lambda x: torch.topk(x, 2),
    "varargs": lambda x: x.permute(2, 0, 1).reshape(6, -1),
    "property": lambda x: x.mT,
    "operator": lambda x: 2 - x / 3,
    "padding": lambda x: F.pad(x, (1, 1)),
    "layer_norm": lambda x: F.layer_norm(x, (6,), eps=1e-3),
    "softmax": lambda x: F.softmax(x, dim=-1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "einsum": lambda x: torch.einsum("abc,abd->acd", x, x),
    "factory": lambda x: torch.arange(0, 6, 2) + x.new_zeros(3),
    "linalg": lambda x: torch.linalg.vector_norm(x, ord=2, dim=-1),
    "dropout that is off": lambda x: F.dropout(x, 0.5, training=False) + 1,
}


@pytest.mark.parametrize("name", list(CALLS))
def test_every_kind_of_call_is_reproduced_to_the_bit(name: str, tmp_path: Path) -> None:
    x = torch.randn(4, 5, 6)
    graph = recorded(tmp_path, lambda: CALLS[name](x))
    calls = [call for call in graph.calls.values() if call.kind == "api"]
    assert calls
    for call in calls:
        for number, made in replay(graph, call).items():
            assert same(made, graph.data(number)), call.name


def test_what_is_written_in_place_is_reproduced(tmp_path: Path) -> None:
    def work() -> None:
        x = torch.ones(3, 4)
        x.add_(1)
        x[:, 1] = 5.0
        x += x
        F.relu_(x)

    graph = recorded(tmp_path, work)
    for call in graph.calls.values():
        for number, made in replay(graph, call).items():
            assert same(made, graph.data(number)), call.name


def test_backward_is_reproduced_to_the_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    x = torch.randn(5, 4, 6)
    graph = recorded(tmp_path, lambda: model(x).pow(2).mean().backward(), model)
    gradients = [call for call in graph.calls.values() if call.is_gradient and call.kind == "api"]
    assert {call.op for call in gradients} >= {"linear", "layer_norm", "gelu", "pow", "mean"}
    for call in gradients:
        for number, made in replay(graph, call).items():
            assert same(made, graph.data(number)), call.name


def test_autocast_is_reproduced(tmp_path: Path) -> None:
    layer = nn.Linear(6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = recorded(tmp_path, lambda: layer(torch.randn(3, 6)), layer)
    (call,) = [call for call in graph.calls.values() if call.op == "linear"]
    ((number, made),) = replay(graph, call).items()
    assert made.dtype == torch.bfloat16
    assert same(made.detach(), graph.data(number))


def test_a_lifted_replay_computes_in_float64_whatever_the_casts(tmp_path: Path) -> None:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    graph = recorded(tmp_path, lambda: x.float().pow(2).mean(-1).to(torch.bfloat16) + 1)
    output = max(graph.producer)
    subgraph = upstream(graph, output, ())
    exact = x.double().pow(2).mean(-1) + 1
    assert torch.equal(subgraph.run({}, torch.float64), exact)
    assert same(subgraph.run(), graph.data(output))
    assert len(subgraph.calls) == 5


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda x: torch.rand_like(x), "random"),
        (lambda x: F.dropout(x, 0.5), "random"),
        (lambda x: torch.tensor(list(range(100))), "too long"),
    ],
)
def test_what_cannot_be_replayed_says_why(work: Callable[[torch.Tensor], object], why: str, tmp_path: Path) -> None:
    graph = recorded(tmp_path, lambda: work(torch.ones(3)))
    (call,) = [call for call in graph.calls.values() if call.op in ("rand_like", "dropout", "tensor")]
    with pytest.raises(CannotReplay, match=why):
        invocation_of(graph, call)


@pytest.mark.parametrize(
    ("head", "kinds", "keywords", "names"),
    [
        ("Functional.layer_norm", ("tensor", "list"), (), ("input", "normalized_shape", "weight", "bias", "eps")),
        ("Tensor.permute", ("tensor", "list"), (), ("self", "dims")),
        ("Tensor.mean", ("tensor", "int"), (), ("self", "dim")),
        ("Tensor.var", ("tensor", "bool"), (), ("self", "unbiased")),
        ("Tensor.var", ("tensor", "int"), (), ("self", "dim", "unbiased")),
        ("Tensor.var", ("tensor", "int"), ("correction",), ("self", "dim", "correction")),
        ("Tensor.max", ("tensor", "int"), (), ("self", "dim", "keepdim")),
        ("Tensor.max", ("tensor", "tensor"), (), ("self", "other")),
        ("Tensor.sort", ("tensor",), ("stable", "descending"), ("self", "stable")),
    ],
)
def test_positional_arguments_have_the_names_of_the_form_that_takes_them(
    head: str, kinds: tuple[str, ...], keywords: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert tuple(parameters(head, kinds, frozenset(keywords)))[: len(names)] == names
