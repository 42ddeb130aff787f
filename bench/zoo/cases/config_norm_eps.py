"""A norm takes its eps from a field of the configuration that the other run sets otherwise."""

import torch
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.add", "blocks.0.norm1", marker="use"),),
    ("semantic",),
    step=0,
    chain=(r"config\.norm_eps",),
)


class Config:
    def __init__(self, norm_eps=1e-6):
        self.norm_eps = norm_eps


class Norm(nn.Module):
    def __init__(self, dim, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = config.norm_eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))  # use


class Model(gpt.GPT):
    def __init__(self, config):
        super().__init__()
        self.config = config
        for block in self.blocks:
            block.norm1, block.norm2 = Norm(32, config), Norm(32, config)


def main(variant):
    torch.manual_seed(0)
    model = Model(Config(1e-3 if variant == "target" else 1e-6))
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
