"""Single against double precision, and a normalisation's eps that is lost on the way."""

import torch
import torch.nn.functional as F

from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.instance_norm"),), ("semantic",), step=0, repair=("eps=0.001",))


def forward(p, x, eps):
    h = F.conv2d(x, p["a"], padding=1) * 0.05
    h = F.instance_norm(h) if eps is None else F.instance_norm(h, eps=eps)  # origin
    h = F.leaky_relu(h, 0.2)
    h = F.conv_transpose2d(h, p["b"], stride=2)
    return torch.tanh(F.conv2d(h, p["c"]))


def main(variant):
    torch.manual_seed(0)
    dtype = torch.float32 if variant == "target" else torch.float64
    shapes = {"a": (8, 3, 3, 3), "b": (8, 6, 2, 2), "c": (3, 6, 1, 1)}
    p = {name: torch.randn(shape).mul(0.3).to(dtype).requires_grad_() for name, shape in shapes.items()}
    optimizer = torch.optim.Adam(p.values(), lr=1e-3)
    values = []
    for _ in range(2):
        x, y = torch.randn(2, 3, 6, 6).to(dtype), torch.randn(2, 3, 12, 12).to(dtype)
        loss = F.l1_loss(forward(p, x, None if variant == "target" else 1e-3), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
