"""The kind of norm is chosen by a helper from the configuration."""

import torch
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth

ORIGIN = Truth(
    (Answer(r".*", ("api", "module", "extra", "missing"), module="blocks.0.norm1", marker=None),),
    ("semantic",),
    step=0,
    chain=(r"@made.*config\.kind='layer'",),
)


class Root(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * ((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5))


class Settings:
    def __init__(self, kind):
        self.kind = kind


class Block(gpt.Block):
    def __init__(self, shape, config):
        super().__init__(shape)
        self.settings = config
        self.norm1 = Layer(32) if config.kind == "layer" else Root(32)  # made


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    settings = Settings("layer" if variant == "target" else "root")
    model.blocks = nn.ModuleList(Block(gpt.Config(), settings) for _ in range(2))
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
