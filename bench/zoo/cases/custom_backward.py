"""A hand-written SiLU forgets one term of its derivative; the forward is right."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, extra

PATH = "blocks.1.mlp"
ORIGIN = Truth(
    (
        Answer(
            r"\w+\.(Silu|SiluBackward|apply|mul|__mul__)\.\d+\.(forward|backward)",
            module=PATH,
            phase="backward",
            marker=None,
        ),
        call("Tensor.mul"),
        extra("Tensor.mul"),
        Answer(r".*", kinds=("missing",), marker="missing"),
    ),
    ("semantic",),
    step=0,
    repair=(r"missing: Tensor\.__rsub__",),
)


class Silu(torch.autograd.Function):
    variant = "reference"

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        if Silu.variant == "target":
            return grad * gate  # origin
        return grad * (gate * (1 + x * (1 - gate)))  # missing


class SwiGLU(gpt.SwiGLU):
    def forward(self, x):
        return self.down(Silu.apply(self.gate(x)) * self.up(x))


def main(variant):
    torch.manual_seed(0)
    Silu.variant = variant
    model = gpt.GPT()
    model.blocks[1].mlp.__class__ = SwiGLU
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
