"""The keys are viewed as (batch, heads, length, size) at once, with no transpose: heads and positions are mixed."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (call("Tensor.(view|reshape)", "encoder.attention"), missing("Tensor.transpose", "encoder.attention")),
    ("semantic",),
    step=0,
    repair=(r"size=\[4, 10, 4, -1\] \(now \[4, 4, 10, -1\]\)",),
)


class Attention(nn.Module):
    def __init__(self, size, heads, variant):
        super().__init__()
        self.heads, self.variant = heads, variant
        self.proj = nn.ModuleDict({name: nn.Linear(size, size) for name in ("query", "key", "value", "output")})

    def forward(self, x, *, bias=None):
        b, n, c = x.shape
        q = self.proj["query"](x).view(b, n, self.heads, -1).transpose(1, 2)
        if self.variant == "target":
            k = self.proj["key"](x).view(b, self.heads, n, -1)  # origin
        else:
            k = self.proj["key"](x).view(b, n, self.heads, -1).transpose(1, 2)  # missing
        v = self.proj["value"](x).view(b, n, self.heads, -1).transpose(1, 2)
        scores = torch.matmul(q, k.mT).div((c // self.heads) ** 0.5)
        if bias is not None:
            scores = scores + bias
        return self.proj["output"](scores.softmax(-1).matmul(v).transpose(1, 2).reshape(b, n, c))


class ViT(nn.Module):
    def __init__(self, variant, size=24):
        super().__init__()
        self.patch = nn.Conv2d(1, size, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, size))
        self.position = nn.Parameter(torch.randn(1, 10, size) * 0.02)
        self.encoder = nn.ModuleDict(
            {
                "before": nn.LayerNorm(size),
                "attention": Attention(size, 4, variant),
                "after": nn.LayerNorm(size),
                "mlp": nn.Sequential(nn.Linear(size, 48), nn.GELU(), nn.Linear(48, size)),
            }
        )
        self.head = nn.Linear(size, 5)

    def forward(self, pixel_values):
        x = self.patch(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), 1) + self.position
        x = x + self.encoder["attention"](self.encoder["before"](x), bias=None)
        x = x + self.encoder["mlp"](self.encoder["after"](x))
        return self.head(x[:, 0])


def main(variant):
    torch.manual_seed(0)
    model = ViT(variant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    images, labels = torch.randn(4, 1, 12, 12), torch.tensor([0, 3, 1, 4])
    values = []
    for _ in range(2):
        loss = F.cross_entropy(model(pixel_values=images), labels, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
