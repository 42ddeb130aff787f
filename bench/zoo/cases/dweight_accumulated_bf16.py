"""A chunked linear-and-loss adds its weight gradient up in bf16 instead of float32."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import parameter_norm, token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth(
    (
        call("(Tensor|Torch).(zeros|zeros_like|new_zeros)", marker="accumulator"),
        call("Tensor.(iadd|add_)"),
        extra("Tensor.(iadd|add_)"),
    ),
    ("precision",),
    step=0,
    repair=("float32", "cast"),
)


class ChunkedLoss(torch.autograd.Function):
    variant = "reference"

    @staticmethod
    def forward(ctx, x, weight, targets):
        dtype = torch.bfloat16 if ChunkedLoss.variant == "target" else torch.float32
        grad_weight = torch.zeros(weight.shape, dtype=dtype)  # accumulator
        grad_x, total = [], torch.zeros(())
        for rows, labels in zip(x.split(4), targets.split(4), strict=True):
            logits = (rows @ weight.t()).float()
            total += F.cross_entropy(logits, labels, reduction="sum") / len(x)
            grad = (F.softmax(logits, dim=-1) - F.one_hot(labels, weight.shape[0])) / len(x)
            grad_x.append(grad.to(x.dtype) @ weight)
            grad_weight += grad.t() @ rows.float()  # origin
        ctx.save_for_backward(torch.cat(grad_x), grad_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx, grad):
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x * grad.to(grad_x.dtype), grad_weight * grad.to(grad_weight.dtype), None


class GPT(gpt.GPT):
    def logits(self, x):
        return x


def main(variant):
    torch.manual_seed(0)
    ChunkedLoss.variant = variant
    model = GPT().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    values = []
    for tokens, targets in token_batches(2, batch=2, length=32):
        optimizer.zero_grad()
        loss = ChunkedLoss.apply(model(tokens).flatten(0, 1), model.head.weight, targets.flatten())
        loss.backward()
        values += [loss.item(), model.head.weight.grad.float().norm().item()]
        optimizer.step()
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
