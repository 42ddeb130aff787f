"""The attention's linear biases have slopes that start at 1 instead of one step below it: numbers from plain Python."""

import torch
import torch.nn.functional as F

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, data

ORIGIN = Truth(
    (call("Torch.tensor"), data(), call("Tensor.mul", marker="consumer")),
    ("semantic", "input"),
    step=0,
    repair=(r"t=\[0\.25, 0\.0625",),
)


def slopes(heads, variant):
    first = 0 if variant == "target" else 1
    return torch.tensor([2.0 ** (-8.0 * (head + first) / heads) for head in range(heads)])  # origin


def attention(q, k, v, variant):
    n = q.shape[2]
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    bias = distance * slopes(q.shape[1], variant)[:, None, None]  # consumer
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + bias
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(distance > 0, -torch.inf).softmax(-1), v)


def main(variant):
    torch.manual_seed(0)
    table = torch.randn(28, 16, requires_grad=True)
    mix = torch.randn(3, 16, 4, 4).mul(0.25).requires_grad_()
    out = torch.randn(4, 4, 16).mul(0.25).requires_grad_()
    optimizer = torch.optim.Adamax([table, mix, out], lr=1e-2)
    values = []
    for _ in range(2):
        tokens = torch.randint(28, (2, 7))
        x = table[tokens]
        q, k, v = torch.einsum("bnd,sdhe->sbhne", x, mix)
        x = x + torch.einsum("bhne,hed->bnd", attention(q, k, v, variant), out)
        loss = F.cross_entropy((x @ table.T)[:, :-1].reshape(-1, 28), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
