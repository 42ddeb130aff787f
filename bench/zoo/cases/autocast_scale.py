"""bf16 autocast against float32, and attention whose scale leaves out the rotary part of the head."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Tensor.(mul|rmul)", "1.attend"),), ("semantic",), step=0, repair=(r"1/√24\) \(now 0\.25 ",))


class Attend(nn.Module):
    def __init__(self, scale, size=48, heads=2):
        super().__init__()
        self.heads, self.scale = heads, scale
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT) * self.scale  # origin
        return self.out((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(48), Attend(scale)

    def forward(self, x):
        return x + self.attend(self.norm(x) * 2)


def main(variant):
    torch.manual_seed(0)
    right = 24**-0.5
    wrong = 16**-0.5 if variant == "target" else right
    model = nn.Sequential(Layer(right), Layer(wrong), nn.LayerNorm(48), nn.Linear(48, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        x = torch.randn(3, 9, 48)
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "target"):
            logits = model(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), x[..., :6].argmax(-1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
