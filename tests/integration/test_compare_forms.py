"""Another form of the same computation is equivalent; a computation that is another is named."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import numscope as ns


class Block(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.count = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def heads(self, x):
        return x.view(*x.shape[:2], self.count, -1).transpose(1, 2)

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    def probabilities(self, scores):
        return F.softmax(scores, dim=-1)

    def masked(self, scores):
        return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))

    def merge(self, y):
        return y.transpose(1, 2).flatten(2)

    def attend(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        return self.o(self.merge(self.probabilities(self.masked(self.scores(q, k))) @ v))

    def act(self, x):
        return F.silu(self.gate(x)) * self.up(x)

    def middle(self, x):
        return self.norm2(x)

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.act(self.middle(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks, self.head = nn.Embedding(64, 32), nn.ModuleList([Block(), Block()]), nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def changed(dtype: torch.dtype, method: str, form: Any) -> ns.compare:
    """Compare the network whose last block has another form of a method with the plain one, backward too."""
    target, reference = Net().to(dtype), Net().to(dtype)
    target.blocks[1].__class__ = type("Block", (Block,), {method: form})
    tokens = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(3))
    labels = torch.arange(16)
    return ns.compare_models(
        target, reference, tokens, loss=lambda logits: F.cross_entropy(logits.flatten(0, 1).float(), labels)
    )


def by_hand(self, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * self.norm2.weight + self.norm2.bias


def fused_projections(self, x):
    weight, bias = torch.cat([self.gate.weight, self.up.weight]), torch.cat([self.gate.bias, self.up.bias])
    y = F.linear(x, weight, bias)
    return F.silu(y[..., :64]) * y[..., 64:]


def other_order(self, x):
    v, k, q = self.heads(self.v(x)), self.heads(self.k(x)), self.heads(self.q(x))
    return self.o(self.merge(self.probabilities(self.masked(self.scores(q, k))) @ v))


def fused_attention(self, x):
    q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
    return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


FORMS: dict[str, tuple[str, Any]] = {
    "silu by hand": ("act", lambda self, x: (lambda g: g * torch.sigmoid(g))(self.gate(x)) * self.up(x)),
    "operands swapped": ("act", lambda self, x: self.up(x) * F.silu(self.gate(x))),
    "scale before the product": ("scores", lambda self, q, k: (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)),
    "einsum": ("scores", lambda self, q, k: torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])),
    "log_softmax": ("probabilities", lambda self, a: F.log_softmax(a, -1).exp()),
    "layer norm by hand": ("middle", by_hand),
    "linear by hand": ("act", lambda self, x: F.silu(x @ self.gate.weight.t() + self.gate.bias) * self.up(x)),
    "fused projections": ("act", fused_projections),
    "fused attention": ("attend", fused_attention),
    "other order of q, k, v": ("attend", other_order),
    "in place": ("act", lambda self, x: F.silu(self.gate(x), inplace=True).mul_(self.up(x))),
    "halves": ("act", lambda self, x: torch.cat([Block.act(self, half) for half in x.chunk(2, 1)], 1)),
    "mask added": (
        "masked",
        lambda self, a: a + torch.full(a.shape[-2:], float("-inf"), dtype=a.dtype).triu(1),
    ),
}

BUGS: dict[str, tuple[str, Any, str]] = {
    "an extra relu": ("act", lambda self, x: F.silu(self.gate(x)) * F.relu(self.up(x)), "relu"),
    "no activation": ("act", lambda self, x: self.gate(x) * self.up(x), "silu"),
    "another activation": ("act", lambda self, x: F.gelu(self.gate(x)) * self.up(x), "gelu"),
    "gate and up exchanged": ("act", lambda self, x: F.silu(self.up(x)) * self.gate(x), "silu|mul"),
    "no scale": ("scores", lambda self, q, k: q @ k.transpose(-2, -1), "div"),
    "heads merged in the wrong order": (
        "merge",
        lambda self, y: y.reshape(y.shape[0], y.shape[2], -1),
        "transpose|reshape",
    ),
    "heads viewed without a transpose": (
        "heads",
        lambda self, x: x.view(len(x), self.count, x.shape[1], -1),
        r"Tensor\.view\.3\.",
    ),
    "no norm": ("middle", lambda self, x: x, "layer_norm|LayerNorm"),
    "no bias": ("act", lambda self, x: F.silu(F.linear(x, self.gate.weight)) * self.up(x), "linear"),
    "a clamp": ("act", lambda self, x: F.silu(self.gate(x)).clamp(max=0.5) * self.up(x), "clamp"),
    "detached": ("act", lambda self, x: F.silu(self.gate(x)).detach() * self.up(x), "detach"),
    "a mask of another diagonal": (
        "masked",
        lambda self, a: a.masked_fill(torch.ones(a.shape[-2:]).triu(2).bool(), float("-inf")),
        "triu",
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_another_form_of_the_same_is_no_origin(name: str, dtype: torch.dtype) -> None:
    comparison = changed(dtype, *FORMS[name])
    assert comparison.verdict in ("identical", "equivalent"), comparison.origin.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", BUGS)
def test_another_computation_is_named(name: str, dtype: torch.dtype) -> None:
    method, form, call = BUGS[name]
    comparison = changed(dtype, method, form)
    assert comparison.verdict == "diverged"
    assert re.search(call, comparison.origin.call), comparison.origin.reason


def test_double_precision_inside_a_float32_model_is_no_origin() -> None:
    def double(self, x):
        weight, bias = self.norm2.weight.double(), self.norm2.bias.double()
        return F.layer_norm(x.double(), (32,), weight, bias, self.norm2.eps).to(x.dtype)

    comparison = changed(torch.float32, "middle", double)
    assert comparison.verdict == "equivalent", comparison.origin.reason


class Skip(nn.Module):
    """Keeps a tensor for a later sum, past an activation that may work in place."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 16)
        self.inplace = inplace

    def forward(self, x):
        kept = self.up(x)
        return self.down(F.relu(kept, inplace=self.inplace)) + kept


@pytest.mark.parametrize("target", [True, False])
def test_a_call_that_writes_into_what_others_still_read_is_named(target: bool) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    comparison = ns.compare_models(Skip(target), Skip(not target), x)
    assert comparison.origin.call == "Functional.relu.0.forward", comparison.origin.reason
    assert "writes into" in comparison.origin.reason
    assert comparison.origin.mechanism == "semantic"


class Affine(nn.Module):
    """Adds its bias in the product or after it, and may add it to each of two halves."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.bias, self.form = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8)), form

    def forward(self, x):
        if self.form == "after":
            return (F.linear(x[..., :4], self.weight[:, :4]) * 3 + self.bias).tanh()
        return (F.linear(x[..., :4], self.weight[:, :4], self.bias) * 3).tanh()


def test_the_call_with_another_operand_is_named_before_the_call_that_is_missing_after_it() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    comparison = ns.compare_models(Affine("inside"), Affine("after"), x)
    assert comparison.origin.call == "Functional.linear.0.forward", comparison.origin.reason
    assert "it is given input.2, its counterpart is not" in comparison.origin.reason
    assert len({(s.call, s.kind) for s in comparison.suspects}) == len(comparison.suspects)


class Scaled(nn.Module):
    """Adds its bias in the product or after it, which is the same, and scales the sum, which may be wrong."""

    def __init__(self, inside: bool, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.inside, self.factor = nn.Linear(8, 8), inside, factor

    def forward(self, x):
        weight, bias = self.linear.weight, self.linear.bias
        y = F.linear(x, weight, bias) if self.inside else F.linear(x, weight) + bias
        return (y * self.factor).exp() if self.factor != 1 else y.exp()


def test_what_is_the_same_within_a_region_that_fails_is_not_named() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    comparison = ns.compare_models(Scaled(True, 0.5), Scaled(False, 1), x)
    assert comparison.origin.call == "Tensor.mul.0.forward", comparison.origin.reason


class Chosen(nn.Module):
    """Multiplies by the first of its levels, and then by it again, by another that it has read before, or by one."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.levels, self.last = torch.tensor([0.5, 0.75, 0.9]), last

    def forward(self, x):
        one, other = self.levels[0], self.levels[1]
        x = (x * one).tanh() * other
        if self.last == "ones":
            other = torch.ones(())
        elif self.last == "again":
            one = self.levels[1]
        return (x * (other if self.last == "ones" else one)).sqrt()


@pytest.mark.parametrize(
    ("target", "reference", "named"),
    [
        ("again", "ones", ("api", "Tensor.__getitem__.2.forward")),
        ("ones", "again", ("api", "Torch.ones.0.forward")),
        ("again", "", ("extra", "Tensor.__getitem__.2.forward")),
        ("", "again", ("missing", "Tensor.__getitem__.2.forward")),
    ],
)
def test_the_call_that_chose_a_tensor_once_more_is_named_before_the_call_that_is_given_it(
    target: str, reference: str, named: tuple[str, str]
) -> None:
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(1))
    origin = ns.compare_models(Chosen(target), Chosen(reference), x).origin
    assert (origin.kind, origin.call) == named, origin.reason


class Masked(nn.Module):
    """Scores under a mask of large numbers, which hides them from a norm."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x):
        scores = x @ x.transpose(1, 2)
        scores = scores / self.scale if self.scale != 1 else scores
        return F.softmax(scores + torch.full(scores.shape[1:], -1e9).triu(1), dim=-1) @ x


@pytest.mark.parametrize("keep", ["stats", "tensors"])
def test_scores_that_a_mask_hides_are_not_taken_for_the_same(keep: str) -> None:
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    for scales, kind in (((1.0, 3.0), "missing"), ((3.0, 1.0), "extra")):
        origin = ns.compare_models(*(Masked(scale) for scale in scales), x, keep=keep).origin
        assert (origin.kind, origin.call) == (kind, "Tensor.div.0.forward"), origin.reason


class Positional(nn.Module):
    def __init__(self, named: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.named = nn.Embedding(9, 8), nn.LayerNorm(8), named

    def forward(self, ids):
        weight, bias = self.norm.weight, self.norm.bias
        x = self.embed(ids)
        y = F.layer_norm(x, (8,), weight=weight, bias=bias) if self.named else F.layer_norm(x, (8,), weight, bias)
        return y @ (self.embed.weight.detach() if self.named else self.embed.weight).t()


def test_a_gradient_of_an_argument_given_by_name_is_on_both_sides() -> None:
    comparison = ns.compare_models(Positional(True), Positional(False), torch.arange(6).view(2, 3))
    assert comparison.origin is not None
    assert "layer_norm" not in comparison.origin.call, comparison.origin.reason
