"""An optimizer of one's own decays the weights after the step with the step's own size."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, optimizer

ORIGIN = Truth(
    (Answer(r".*", ("api", "extra", "missing"), marker="origin"), optimizer("Sign")),
    ("semantic",),
    step=0,
    chain=(r"@origin",),
)


class Sign(torch.optim.Optimizer):
    variant = "reference"

    def __init__(self, parameters, lr=3e-3, decay=0.5):
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                update = mean.mul(0.9).add(parameter.grad, alpha=0.1).sign_()
                if self.variant == "target":
                    update.add_(parameter, alpha=group["lr"] * group["decay"])  # origin
                else:
                    parameter.mul_(1 - group["lr"] * group["decay"])  # origin
                parameter.add_(update, alpha=-group["lr"])
                mean.mul_(0.99).add_(parameter.grad, alpha=0.01)


def main(variant):
    torch.manual_seed(0)
    Sign.variant = variant
    model = GPT()
    return train(model, token_batches(3), optimizer=Sign(model.parameters()))


if __name__ == "__main__":
    run(main)
