"""An additive mask of zeros and minus infinities against a boolean one, and an average by lerp against two products."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Layer(nn.Module):
    def __init__(self, additive, size=16):
        super().__init__()
        self.additive = additive
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if self.additive:
            mask = torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)[:, None, None]
        else:
            mask = keep[:, None, None]
        return x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


@torch.no_grad()
def average(slow, fast, by_lerp, decay=0.95):
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        if by_lerp:
            a.lerp_(b, 1 - decay)
        else:
            a.copy_(decay * a + (1 - decay) * b)


def main(variant):
    torch.manual_seed(0)
    model = Layer(additive=variant == "target")
    slow = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        x, keep = torch.randn(3, 6, 16), torch.arange(6) < torch.tensor([[6], [4], [5]])
        loss = (model(x, keep) - x.flip(1)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average(slow, model, variant == "target")
        values.append(loss.item())
    with torch.no_grad():
        return [*values, slow(x, keep).norm().item()]


if __name__ == "__main__":
    run(main)
