"""Each hypothesis finds its own fault, says the repair, and keeps silent about others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import numscope as ns
from numscope.diagnose.hypotheses import FAMILIES, fitting
from numscope.diagnose.hypotheses.case import Case
from numscope.diagnose.hypotheses.masks import allowed_band
from numscope.diagnose.hypotheses.rope import rotary_base
from numscope.diagnose.hypotheses.wording import recognise, spoken, value_words
from numscope.diagnose.recorded.invocation import TensorRef
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import Subgraph, upstream

Work = Callable[..., torch.Tensor]


def subgraph(path: Path, work: Work, inputs: dict[str, torch.Tensor]) -> Subgraph:
    with ns.capture(path, None, keep="tensors", on_error="raise") as cap:
        for name, tensor in inputs.items():
            cap.save(name, tensor)
        cap.save("result", work(**inputs))
    graph = StepGraph(ns.open_run(path), 0, 0)
    given_numbers = {
        number for name in inputs for number in graph.outputs(graph.by_name[f"Save.{name}.0.forward"].order).values()
    }
    output = next(iter(graph.outputs(graph.by_name["Save.result.0.forward"].order).values()))
    return upstream(graph, output, given_numbers, include_maker=True)


def case(tmp_path: Path, wrong: Work, right: Work, inputs: dict[str, torch.Tensor]) -> Case:
    target, reference = subgraph(tmp_path / "target", wrong, inputs), subgraph(tmp_path / "reference", right, inputs)
    partners = {
        number: reference.graph.by_content[tensor.content]
        for number, tensor in target.graph.tensors.items()
        if tensor.content in reference.graph.by_content
    }
    return Case(target, reference, {}, {}, 1e-6, 1e-15, partners)


def rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, pairs: bool) -> torch.Tensor:
    if pairs:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    else:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
    return x * cosine + turned * sine


def window(x: torch.Tensor, width: int) -> torch.Tensor:
    distance = torch.arange(8).unsqueeze(1) - torch.arange(8)
    return (distance >= 0) & (distance < width)


torch.manual_seed(0)
X = torch.randn(6, 8)
W = torch.randn(8, 8)
B = torch.randn(8)
ANGLES = torch.randn(6, 8)

MASK = (torch.rand(64, 64, generator=torch.Generator().manual_seed(2)) > 0.25).float()
FAULTS: dict[str, tuple[Work, Work, dict[str, torch.Tensor], str]] = {
    "argument": (lambda x: x.softmax(0), lambda x: x.softmax(1), {"x": X}, r"dim=1 \(now 0\)"),
    "two arguments": (
        lambda x: F.layer_norm(x, (8,), eps=1e-2) * 2,
        lambda x: F.layer_norm(x, (8,), eps=1e-5) * 3,
        {"x": X},
        r"eps=1e-05.*scale factor 3 ",
    ),
    "scale": (lambda x: x / 4, lambda x: x / math.sqrt(10), {"x": X}, r"√10"),
    "hidden scale": (
        lambda x: torch.tanh(x) * 2,
        lambda x: torch.tanh(x) + 2 * torch.tanh(x),
        {"x": X},
        "scale factor of 1.5",
    ),
    "sign": (lambda x: x.exp(), lambda x: -(x.exp()), {"x": X}, "missing|sign"),
    "operand": (lambda a, b: a - b, lambda a, b: b - a, {"a": X, "b": ANGLES}, "swapped"),
    "wrong operand": (lambda a, b: a + a.tanh(), lambda a, b: b + a.tanh(), {"a": X, "b": ANGLES}, "operand"),
    "transposed weight": (lambda x, w: x @ w, lambda x, w: x @ w.t(), {"x": X, "w": W}, "transposed"),
    "rope": (
        lambda x, c, s: rope(x, c, s, True),
        lambda x, c, s: rope(x, c, s, False),
        {"x": X, "c": ANGLES.cos(), "s": ANGLES.sin()},
        r"RoPE turning halves \(now neighbours",
    ),
    "reduction": (lambda x: x.mean(-1), lambda x: x.sum(-1), {"x": X}, "sum in place of mean"),
    "missing bias": (lambda x, w, b: x @ w, lambda x, w, b: x @ w + b, {"x": X, "w": W, "b": B}, "missing"),
    "doubled bias": (lambda x, b: x.exp() + b + b, lambda x, b: x.exp() + b, {"x": X, "b": B}, "without|now twice"),
    "window": (lambda x: window(x, 4), lambda x: window(x, 3), {"x": X}, r"other=3 \(now 4\)|window"),
    "permutation": (lambda x: x.repeat(1, 2), lambda x: x.repeat_interleave(2, 1), {"x": X}, "interleave"),
    "split": (lambda x: x[:, :4], lambda x: x[:, ::2], {"x": X}, r"slice|split"),
    "gelu by hand": (
        lambda x: x * 0.5 * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3)))),
        lambda x: F.gelu(x),
        {"x": X},
        "erf form",
    ),
    "soft cap": (lambda x: x * 3, lambda x: 5 * torch.tanh(x * 3 / 5), {"x": X}, r"soft cap 5·tanh"),
    "cast": (
        lambda x, b: x.to(torch.bfloat16) * b.to(torch.bfloat16),
        lambda x, b: (x * b).to(torch.bfloat16),
        {"x": X, "b": B},
        "in float32 and the cast to bfloat16 after",
    ),
    "causal": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        {"x": X},
        r"is_causal=False",
    ),
    "rounded": (
        lambda x: x.to(torch.bfloat16).to(torch.float32) * 1.0,
        lambda x: x * 1.0,
        {"x": X},
        "without the cast to bfloat16|before they were rounded to bfloat16",
    ),
    "rotary base": (
        lambda i: 10000.0 ** (-i / 16),
        lambda i: 500000.0 ** (-i / 16),
        {"i": torch.arange(16.0)},
        r"500000.*\(now 1e\+?0?4|500000 \(now 10000\)",
    ),
    "dropout": (
        lambda x: F.relu(x.exp()) * MASK / 0.75,
        lambda x: F.relu(x.exp()),
        {"x": torch.randn(64, 64)},
        r"dropout off, training=False \(now on with p=0.25\)",
    ),
    "missing call with its argument": (
        lambda x: x * 2.0,
        lambda x: (x * 2.0).add(0.5),
        {"x": X},
        r"the call that is missing: Tensor.add.0.forward \(0.5\)",
    ),
    "other calls": (
        lambda x: torch.sigmoid(x),
        lambda x: x.cos().exp(),
        {"x": X},
        r"Tensor.cos.0.forward, Tensor.exp.0.forward in place of Torch.sigmoid.0.forward",
    ),
    "off by one": (
        lambda x: torch.roll(x, 1, 0) * 1.0,
        lambda x: torch.roll(x, 2, 0) * 1.0,
        {"x": X},
        "shifts=|shifted",
    ),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_the_hypothesis_that_fits_is_found(name: str, tmp_path: Path) -> None:
    wrong, right, inputs, words = FAULTS[name]
    found = fitting(case(tmp_path, wrong, right, inputs))
    assert found is not None
    assert re.search(words, str(found)), str(found)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (lambda x: torch.sin(x), lambda x: torch.lgamma(x.abs() + 1)),
        (lambda x: x.sort(-1).values.cumsum(-1), lambda x: x.cumsum(-1).exp()),
    ],
)
def test_what_no_hypothesis_explains_has_no_repair(wrong: Work, right: Work, tmp_path: Path) -> None:
    found = fitting(case(tmp_path, wrong, right, {"x": X}))
    assert found is None or "in place of" in str(found)


def test_every_family_is_a_file() -> None:
    folder = Path(__file__).parents[4] / "src" / "numscope" / "diagnose" / "hypotheses"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "case", "wording"}
    files -= {"collectives"}  # asked of all ranks, not of a case: see test_collectives
    assert files == set(FAMILIES)


@given(st.integers(1, 4096))
def test_numbers_are_recognised(number: int) -> None:
    assert recognise(float(number)) == str(number)
    root = math.isqrt(number)
    whole = root * root == number
    assert recognise(math.sqrt(number)) == (str(root) if whole else f"√{number}")
    if number > 64 and not whole:
        assert recognise(1 / math.sqrt(number)) == f"1/√{number}"


def test_other_numbers_are_not() -> None:
    assert recognise(math.pi) is None
    assert recognise(float("nan")) is None
    assert spoken(0.3535533906) == "0.3535534 (1/√8)"
    assert spoken(1 / 0.99) == "1.010101 (100/99)"


@given(st.integers(-3, 0), st.integers(0, 7))
def test_a_band_is_told_from_its_mask(low: int, high: int) -> None:
    distance = torch.arange(8).unsqueeze(1) - torch.arange(8)
    mask = (distance >= low) & (distance <= high)
    if mask.all():
        assert allowed_band(mask) is None
    else:
        assert allowed_band(mask) == (low, high)
        additive = torch.zeros(8, 8).masked_fill(~mask, -1e9)
        assert allowed_band(additive) == (low, high)
    assert allowed_band(torch.rand(8, 8) > 0.5) is None


def test_the_base_of_a_rotary_embedding_is_read_from_its_frequencies() -> None:
    frequencies = 500000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    assert rotary_base(frequencies) == pytest.approx(500000.0)
    assert rotary_base(torch.linspace(1, 0.1, 32)) is None
    assert rotary_base(torch.ones(8)) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e-6, "1e-06"),
        ((slice(None), slice(1, 17)), "[:, 1:17]"),
        ((..., slice(None, None, 2)), "[..., ::2]"),
        ([TensorRef(3), TensorRef(4)], "[a tensor, a tensor]"),
        ((2, 0), "(2, 0)"),
        (torch.float32, "float32"),
        ("tanh", "'tanh'"),
        (-3.4028234663852886e38, "-3.4028234663852886e+38"),
    ],
)
def test_a_value_is_shown_in_words(value: object, shown: str) -> None:
    assert value_words(value) == shown
