"""A hand-written Adam counts its steps wrongly in the second moment's bias correction."""

import torch

from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.models.vision import ResNet
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, optimizer

ORIGIN = Truth(
    (optimizer("Adam"), call("Tensor.(true)?div"), call("Tensor.(true)?div", marker=None, phase="optimizer")),
    ("semantic",),
    step=0,
    repair=("factor of 0.707",),
)


class Adam(torch.optim.Optimizer):
    variant = "reference"

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(count=0, first=torch.zeros_like(parameter), second=torch.zeros_like(parameter))
                state["count"] += 1
                state["first"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["second"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                count = state["count"] + 1 if self.variant == "target" else state["count"]
                second = state["second"] / (1 - 0.999**count)  # origin
                first = state["first"] / (1 - 0.9 ** state["count"])
                parameter.addcdiv_(first, second.sqrt().add_(1e-8), value=-group["lr"])


def main(variant):
    torch.manual_seed(0)
    Adam.variant = variant
    model = ResNet()
    return train(model, image_batches(2), class_loss, Adam(model.parameters(), 1e-3))


if __name__ == "__main__":
    run(main)
