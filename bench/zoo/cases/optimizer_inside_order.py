"""An optimizer of a library normalises by its second moment before that has taken in the gradient."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth

ORIGIN = Truth(
    (
        Answer(r"Optimizer\.\w+\.step\.\d+", ("optimizer",), marker=None),
        Answer(r"(Tensor|Torch)\..*", (), marker="order"),
    ),
    ("semantic",),
    step=0,
    chain=(r"@order|denominator = |square\.mul_",),
)


class Base(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-2):
        super().__init__(parameters, {"lr": lr})


class Early(Base):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                square = self.state[parameter].setdefault("square", torch.ones_like(parameter))
                denominator = square.sqrt().add_(1e-3)  # order
                square.mul_(0.9).addcmul_(parameter.grad, parameter.grad, value=0.1)
                parameter.addcdiv_(parameter.grad, denominator, value=-group["lr"])


class Late(Base):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                square = self.state[parameter].setdefault("square", torch.ones_like(parameter))
                square.mul_(0.9).addcmul_(parameter.grad, parameter.grad, value=0.1)
                denominator = square.sqrt().add_(1e-3)  # order
                parameter.addcdiv_(parameter.grad, denominator, value=-group["lr"])


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    kind = Early if variant == "target" else Late
    return train(model, token_batches(3), optimizer=kind(model.parameters()))


if __name__ == "__main__":
    run(main)
