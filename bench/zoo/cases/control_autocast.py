"""bf16 autocast against float32."""

import torch

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import language_loss, token_batches, train
from bench.zoo.script import run

CONTROL = True


def autocast_loss(model, tokens, targets):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return language_loss(model, tokens, targets)


def main(variant):
    torch.manual_seed(0)
    return train(ClassicGPT(), token_batches(2), autocast_loss if variant == "target" else language_loss)


if __name__ == "__main__":
    run(main)
