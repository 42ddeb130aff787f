"""Messages to the same node overwrite each other instead of adding up: a graph network of plain tensors."""

import torch

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.(scatter|scatter_add|index_copy|index_add)"),
        extra("Tensor.(scatter|index_copy)"),
        missing("Tensor.(scatter_add|index_add)"),
    ),
    ("semantic",),
    step=0,
    repair=(r"index_add in place of index_copy",),
)


def gather_messages(messages, receivers, nodes, variant):
    out = messages.new_zeros(nodes, messages.shape[1])
    if variant == "target":
        return out.index_copy(0, receivers, messages)  # origin
    return out.index_add(0, receivers, messages)  # missing


def main(variant):
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 3], [1, 2, 3, 4, 5, 0, 4, 0]])
    x = torch.randn(6, 8)
    weights = [torch.randn(16, 12).mul(0.25).requires_grad_(), torch.randn(20, 8).mul(0.2).requires_grad_()]
    readout = torch.randn(8).requires_grad_()
    optimizer = torch.optim.Adagrad([*weights, readout], lr=0.05)
    values = []
    for _ in range(2):
        h = x
        for _ in range(2):
            messages = torch.relu(torch.cat([h[edges[0]], h[edges[1]]], 1) @ weights[0])
            received = gather_messages(messages, edges[1], 6, variant)
            h = h + torch.tanh(torch.cat([h, received], 1) @ weights[1])
        loss = (h @ readout - torch.arange(6.0)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
