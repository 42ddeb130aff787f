"""Attention in blocks of keys: the sum so far is not rescaled when a block raises the maximum."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (missing("Tensor.mul"), call("Tensor.add", marker="consumer"), call("Tensor.(mul|add)")),
    ("semantic",),
    step=0,
    repair=(r"missing: Tensor\.mul",),
)


def blockwise(q, k, v, block, variant):
    q = q * q.shape[-1] ** -0.5
    out, total = torch.zeros_like(q), q.new_zeros(*q.shape[:-1], 1)
    top = torch.full_like(total, -torch.inf)
    for keys, values in zip(k.split(block, 2), v.split(block, 2), strict=True):
        scores = q @ keys.mT
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - higher)
        rescale = torch.exp(top - higher)
        if variant == "reference":
            out = out * rescale  # missing
        out = out + weights @ values  # origin # consumer
        total = total * rescale + weights.sum(-1, keepdim=True)
        top = higher
    return out / total


class Layer(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.qkv, self.out, self.variant = nn.Linear(16, 48), nn.Linear(16, 16), variant

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return x + self.out(blockwise(q * 3, k, v, 4, self.variant).transpose(1, 2).flatten(2))


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(Layer(variant), nn.LayerNorm(16), Layer("reference"), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        x = torch.randn(2, 12, 16)
        loss = F.mse_loss(model(x), x[..., :4].cumsum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
