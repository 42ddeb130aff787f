"""A classic GPT: learned positions, LayerNorm, GELU, dropout, fused attention, tied head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention by the fused kernel."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v, padding).transpose(1, 2).reshape(batch, length, dim))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        if padding is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        length = q.shape[2]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal & padding[:, None, None, :])


class Mlp(nn.Module):
    """The feed-forward."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attn(self.ln1(x), padding))
        return x + self.drop(self.mlp(self.ln2(x)))


class ClassicGPT(nn.Module):
    """The language model; the head's weight is the embedding's."""

    def __init__(
        self, vocabulary: int = 64, dim: int = 32, heads: int = 4, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(64, dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.tie()

    def tie(self) -> None:
        nn.init.normal_(self.embed.weight, std=0.3)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.drop(self.embed(tokens) + self.position(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x, padding)
        return self.head(self.ln(x))
