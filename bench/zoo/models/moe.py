"""A mixture-of-experts layer and a small model around it: top-k router, load-balancing loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Expert(nn.Module):
    """One expert's feed-forward."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Router(nn.Module):
    """Chooses k experts for a token, with weights that add to one."""

    def __init__(self, dim: int, experts: int, k: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.k = k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities = F.softmax(self.gate(x), dim=-1)
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen, probabilities


class MoE(nn.Module):
    """The layer; `balance` is the last call's load-balancing loss."""

    def __init__(self, dim: int, experts: int = 4, k: int = 2) -> None:
        super().__init__()
        self.router = Router(dim, experts, k)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(experts))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen, probabilities = self.router(tokens)
        self.balance = self.balance_loss(probabilities, chosen)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            if len(rows):
                result = result.index_add(0, rows, expert(tokens[rows]) * weights[rows, slot].unsqueeze(-1))
        return result.view_as(x)

    def balance_loss(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        count = probabilities.shape[-1]
        load = F.one_hot(chosen, count).sum(1).float().mean(0)
        return count * (load * probabilities.mean(0)).sum()


class MoEModel(nn.Module):
    """Embedding, two mixture layers with residuals, head."""

    def __init__(self, vocabulary: int = 64, dim: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.layers = nn.ModuleList(MoE(dim) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(tokens)
        balance = torch.zeros(())
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
            balance = balance + layer.balance
        return self.head(x), balance
