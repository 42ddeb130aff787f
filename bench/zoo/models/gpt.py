"""A modern GPT: RoPE, RMSNorm, SwiGLU, grouped-query attention, and decoding with a KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """The shape of the model."""

    vocabulary: int = 64
    dim: int = 32
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    hidden: int = 64
    length: int = 64


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, computed in float32."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).to(x.dtype)


class Rope(nn.Module):
    """The cosines and sines of the positions, in float32."""

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(positions.float(), self.frequencies)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def rotate_half(x: Tensor) -> Tensor:
    """Return (-second half, first half)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return x turned by its position's angle."""
    return (x * cosine + rotate_half(x) * sine).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention, written out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.size = config.dim // config.heads
        self.q = nn.Linear(config.dim, config.dim, bias=False)
        self.k = nn.Linear(config.dim, self.kv_heads * self.size, bias=False)
        self.v = nn.Linear(config.dim, self.kv_heads * self.size, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(
        self,
        x: Tensor,
        cosine: Tensor,
        sine: Tensor,
        mask: Tensor,
        cache: list[Tensor] | None = None,
    ) -> Tensor:
        q, k, v = self.project(x)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
            cache[:] = [k, v]
        k, v = self.spread(k), self.spread(v)
        return self.join(self.attend(q, k, v, mask))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        return q, k, v

    def spread(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.heads // self.kv_heads, dim=1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.size))
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return F.softmax(scores.float(), dim=-1).to(q.dtype) @ v

    def join(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """The gated feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.dim)
        self.attn = Attention(config)
        self.norm2 = RMSNorm(config.dim)
        self.mlp = SwiGLU(config)

    def forward(
        self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor, cache: list[Tensor] | None = None
    ) -> Tensor:
        x = x + self.attn(self.norm1(x), cosine, sine, mask, cache)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The language model; `past` is the number of tokens in the caches."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        config = config or Config()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.dim)
        self.rope = Rope(config.dim // config.heads)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor, caches: list[list[Tensor]] | None = None) -> Tensor:
        past = caches[0][0].shape[2] if caches and caches[0] else 0
        cosine, sine = self.rope(self.positions(past, tokens.shape[1]))
        mask = self.mask(past, tokens.shape[1])
        x = self.embed_tokens(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, cosine, sine, mask, caches[number] if caches is not None else None)
        return self.logits(self.norm(x))

    def positions(self, past: int, length: int) -> Tensor:
        return torch.arange(past, past + length)

    def mask(self, past: int, length: int) -> Tensor:
        rows = torch.arange(past, past + length).unsqueeze(1)
        return torch.arange(past + length).unsqueeze(0) <= rows

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x)


@torch.no_grad()
def generate(model: GPT, tokens: Tensor, count: int) -> tuple[Tensor, list[float]]:
    """Decode greedily with a KV cache; return the tokens and the l2 norm of each step's logits."""
    caches: list[list[Tensor]] = [[] for _ in model.blocks]
    norms = []
    step_input = tokens
    for _ in range(count):
        logits = model(step_input, caches)[:, -1].float()
        norms.append(logits.norm().item())
        step_input = logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, step_input], dim=1)
    return tokens, norms
