"""An optimizer of one's own takes the second moment's correction to the wrong power."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, missing, optimizer

ORIGIN = Truth(
    (
        call("Tensor.(add_|addcdiv_|sub_)", marker="origin"),
        call("Tensor.(div|mul|truediv)", marker="origin"),
        optimizer("Own"),
        missing("Tensor.(div|truediv)", marker="origin"),
        Answer(r".*", marker="origin"),
    ),
    ("semantic",),
    step=1,
    chain=("Own.step, @step",),
)


class Own(torch.optim.Optimizer):
    variant = "reference"

    def __init__(self, parameters, lr=1e-2, beta=0.9):
        super().__init__(parameters, {"lr": lr, "beta": beta})
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):  # step
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                mean.mul_(group["beta"]).add_(parameter.grad, alpha=1 - group["beta"])
                power = 1 if self.variant == "target" else self.count
                update = mean / (1 - group["beta"] ** power)  # origin
                parameter.add_(update, alpha=-group["lr"])


def main(variant):
    torch.manual_seed(0)
    Own.variant = variant
    model = GPT()
    return train(model, token_batches(3), optimizer=Own(model.parameters()))


if __name__ == "__main__":
    run(main)
