"""Under bf16 autocast against float32, one block also forgets its gate: a bug among ordinary differences of precision."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (
        missing("Tensor.mul", "blocks.1"),
        missing("Torch.sigmoid", "blocks.1"),
        missing("Functional.linear", "blocks.1.gate"),
        call("Functional.gelu", "blocks.1"),
    ),
    ("semantic",),
    step=0,
    repair=(r"missing: Functional\.linear\.5",),
)


class Gated(nn.Module):
    def __init__(self, size=32, gated=True):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.value, self.gate, self.out = (nn.Linear(size, size) for _ in range(3))
        self.gated = gated

    def forward(self, x):
        h = self.norm(x)
        y = self.value(h)
        if self.gated:
            y = y * torch.sigmoid(self.gate(h))  # missing
        return x + self.out(F.gelu(y))  # origin


class Net(nn.Module):
    def __init__(self, gated):
        super().__init__()
        self.enter = nn.Linear(8, 32)
        self.blocks = nn.ModuleList([Gated(), Gated(gated=gated), Gated()])
        self.leave = nn.Linear(32, 4)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def main(variant):
    torch.manual_seed(0)
    model = Net(gated=variant == "reference")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "target"):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
