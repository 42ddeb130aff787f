"""Two small decoders with faults to plant, each on a line of its own that carries its name: `# fault NAME`.

A fault is in one layer of four, as a wrong port would have it, so that its three siblings show what rounding does.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.truth import Answer, Truth, call, extra, missing

WIDTH, HEADS, GROUPS, LAYERS, VOCABULARY, LENGTH, BATCH = 128, 4, 2, 4, 512, 48, 4
WRONG_LAYER = 2


class RmsNorm(nn.Module):
    def __init__(self, width: int, fault: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-6 if fault != "rms_eps" else 1e-3
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = x.float()
        if self.fault == "rms_variance":
            size = high.var(-1, keepdim=True, unbiased=False)  # fault rms_variance
        else:
            size = high.pow(2).mean(-1, keepdim=True)
        normed = high * torch.rsqrt(size + self.eps)  # fault rms_eps
        if self.fault == "cast_order":
            return (normed * self.weight.float()).to(x.dtype)  # fault cast_order
        return normed.to(x.dtype) * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def angles(fault: str, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    half = WIDTH // HEADS // 2
    base = 10_000.0 if fault != "rope_base" else 9_000.0
    frequencies = base ** (-torch.arange(half, device=device).float() / half)  # fault rope_base
    positions = torch.arange(LENGTH, device=device).float()
    if fault == "rope_bf16":
        frequencies = frequencies.bfloat16()  # fault rope_bf16
        positions = positions.bfloat16()
    table = torch.outer(positions, frequencies).float()
    table = torch.cat((table, table), -1)
    return table.cos().to(dtype), table.sin().to(dtype)


class Attention(nn.Module):
    def __init__(self, groups: int, bias: bool, kernel: str, fault: str = "") -> None:
        super().__init__()
        self.depth = WIDTH // HEADS
        self.groups = groups
        self.kernel = kernel
        self.fault = fault
        self.q = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.k = nn.Linear(WIDTH, groups * self.depth, bias=bias)
        self.v = nn.Linear(WIDTH, groups * self.depth, bias=bias)
        self.out = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, self.depth).transpose(1, 2)
        k = self.k(x).view(batch, length, self.groups, self.depth).transpose(1, 2)
        v = self.v(x).view(batch, length, self.groups, self.depth).transpose(1, 2)
        if cos is not None and sin is not None:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.groups != HEADS:
            times = HEADS // self.groups
            if self.fault == "gqa_order":
                k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)  # fault gqa_order
            else:
                k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        scale = 1 / math.sqrt(self.depth if self.fault != "scale" else self.depth + 2)
        limit = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(0)
        if self.fault == "mask":
            limit = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(1)  # fault mask
        if self.kernel == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=limit, scale=scale)  # fault scale
        else:
            scores = (q @ k.transpose(-1, -2)) * scale  # fault scale
            scores = scores.masked_fill(~limit, torch.finfo(scores.dtype).min)
            if self.fault == "softmax_low":
                shares = scores.bfloat16().softmax(-1).to(q.dtype)  # fault softmax_low
            else:
                shares = scores.float().softmax(-1).to(q.dtype)
            mixed = shares @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class GatedMlp(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "silu_gelu":
            return self.down(F.gelu(self.gate(x)) * self.up(x))  # fault silu_gelu
        if self.fault == "gate_swapped":
            return self.down(F.silu(self.up(x)) * self.gate(x))  # fault gate_swapped
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mlp(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        how = "tanh" if self.fault == "gelu_tanh" else "none"
        return self.down(F.gelu(self.up(x), approximate=how))  # fault gelu_tanh


class Block(nn.Module):
    def __init__(self, family: str, kernel: str, fault: str) -> None:
        super().__init__()
        self.fault = fault
        if family == "rms":
            self.norm1, self.norm2 = RmsNorm(WIDTH, fault), RmsNorm(WIDTH)
            self.attention = Attention(GROUPS, False, kernel, fault)
            self.mlp: nn.Module = GatedMlp(fault)
        else:
            eps = 1e-3 if fault == "ln_eps" else 1e-5
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=eps), nn.LayerNorm(WIDTH)
            self.attention = Attention(HEADS, True, kernel, fault)
            self.mlp = Mlp(fault)

    def forward(self, x: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)  # fault ln_eps
        if self.fault == "residual":
            return self.norm2(x) + self.mlp(self.norm2(x))  # fault residual
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A decoder of four layers: `rms` (grouped heads, rotary, gated) or `ln` (learned positions, gelu)."""

    def __init__(self, family: str, kernel: str, fault: str = "") -> None:
        super().__init__()
        self.family = family
        self.fault = fault
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH + 1, WIDTH) if family == "ln" else None
        self.blocks = nn.ModuleList(
            Block(family, kernel, fault if layer == WRONG_LAYER else "") for layer in range(LAYERS)
        )
        self.norm: nn.Module = RmsNorm(WIDTH) if family == "rms" else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        cos = sin = None
        if self.positions is not None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            if self.fault == "position":
                places = places + 1  # fault position
            x = x + self.positions(places)
        else:
            cos, sin = angles(self.fault, x.device, x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))

    def loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        wanted = tokens[:, 1:].reshape(-1)
        given = logits[:, :-1].reshape(-1, VOCABULARY).float()
        if self.fault == "label_smoothing":
            return F.cross_entropy(given, wanted, label_smoothing=0.01)  # fault label_smoothing
        if self.fault == "shift":
            given = logits[:, 1:].reshape(-1, VOCABULARY).float()  # fault shift
        return F.cross_entropy(given, wanted)


_ANY = r"(Functional|Tensor|Torch)\..*"
_ALONE = ("missing", "extra")


def _at(fault: str, *answers: Answer, mechanisms: tuple[str, ...] = ("semantic",)) -> Truth:
    """Return the truth of a fault that its line shows: a call on that line, whether both sides have it or one alone."""
    marker = f"fault {fault}"
    return Truth((Answer(_ANY, marker=marker), Answer(_ANY, _ALONE, marker=marker), *answers), mechanisms, step=0)


def _inside(module: str) -> Answer:
    """Return an answer that names a call of one side alone inside the faulty module."""
    return Answer(_ANY, _ALONE, module, None)


_LOW = ("precision",)
_ATTENTION = "blocks.2.attention"
# family → fault → its truth.
FAULTS: dict[str, dict[str, Truth]] = {
    "rms": {
        "rms_eps": _at("rms_eps"),
        "rms_variance": _at("rms_variance", _inside("blocks.2.norm1")),
        "cast_order": _at(
            "cast_order", _inside("blocks.2.norm1"), Answer(_ANY, (), "blocks.2.norm1", None), mechanisms=_LOW
        ),
        "rope_base": _at("rope_base"),
        "rope_bf16": _at("rope_bf16", extra("Tensor.bfloat16", marker=None), mechanisms=_LOW),
        "gqa_order": _at("gqa_order", missing("Tensor.repeat_interleave", _ATTENTION, marker=None)),
        "scale": _at("scale"),
        "mask": _at("mask"),
        "softmax_low": _at(
            "softmax_low",
            extra("Tensor.bfloat16", _ATTENTION, marker=None),
            missing("Tensor.float", _ATTENTION, marker=None),
            mechanisms=_LOW,
        ),
        "silu_gelu": _at("silu_gelu", missing("Functional.silu", "blocks.2.mlp", marker=None)),
        "gate_swapped": _at("gate_swapped"),
        "residual": _at("residual", _inside("blocks.2.norm2")),
        "label_smoothing": _at("label_smoothing"),
    },
    "ln": {
        "ln_eps": _at(
            "ln_eps",
            call("Functional.layer_norm", "blocks.2.norm1", marker=None),
            Answer(r"Module\.blocks\.2\.norm1\..*", marker=None),
        ),
        "gelu_tanh": _at("gelu_tanh"),
        "scale": _at("scale"),
        "mask": _at("mask"),
        "softmax_low": _at(
            "softmax_low",
            extra("Tensor.bfloat16", _ATTENTION, marker=None),
            missing("Tensor.float", _ATTENTION, marker=None),
            mechanisms=_LOW,
        ),
        "position": _at("position"),
        "residual": _at("residual", _inside("blocks.2.norm2")),
        "shift": _at("shift"),
    },
}
EAGER_ONLY = {"softmax_low"}  # the fused kernel has no softmax to cast
