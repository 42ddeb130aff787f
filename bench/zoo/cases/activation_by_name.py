"""The feed-forward looks its activation up by a name of the configuration."""

import torch
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Functional.(gelu|silu)", "blocks.0.mlp.act", marker=None),
        extra("Functional.gelu", "blocks.0.mlp.act", marker=None),
        missing("Functional.silu", "blocks.0.mlp.act", marker=None),
        call("Functional.(gelu|silu)", None, marker=None),
    ),
    ("semantic",),
    step=0,
    chain=(r"@chosen.*config\.activation='gelu'",),
)
ACTIVATIONS = {"gelu": nn.GELU, "silu": nn.SiLU}


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.act = ACTIVATIONS[config.activation]()  # chosen

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Settings:
    def __init__(self, activation):
        self.activation = activation


class Model(gpt.GPT):
    def __init__(self, settings):
        super().__init__()
        for block in self.blocks:
            block.mlp = MLP(settings)


def main(variant):
    torch.manual_seed(0)
    return train(Model(Settings("gelu" if variant == "target" else "silu")), token_batches(2))


if __name__ == "__main__":
    run(main)
