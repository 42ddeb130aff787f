"""The last norm has no weight, and the optimizer has other betas."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, missing

ORIGIN = Truth(
    (missing("Tensor.mul", "norm", marker="weighted"), call("Tensor.mul", "norm", marker=None)),
    ("semantic",),
    step=0,
    second=(Answer(r"Optimizer\.AdamW\.step\.\d+", ("optimizer",), marker=None),),
)


class Plain(gpt.RMSNorm):
    weighted = True

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weighted:
            h = h * self.weight  # weighted
        return h


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    model.norm.__class__ = Plain
    model.norm.weighted = variant == "reference"
    betas = (0.9, 0.999) if variant == "reference" else (0.5, 0.999)
    return train(model, token_batches(3), optimizer=torch.optim.AdamW(model.parameters(), 1e-3, betas=betas))


if __name__ == "__main__":
    run(main)
