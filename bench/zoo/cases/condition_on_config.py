"""A field of the configuration switches the scaling of the embedding off."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth(
    (missing("Tensor.mul", "", marker="scaled"),),
    ("semantic",),
    step=0,
    chain=(r"settings\.scales=False \(True",),
)


class Settings:
    def __init__(self, scales):
        self.scales = scales


class Model(gpt.GPT):
    def embed_tokens(self, tokens):
        x = self.embed(tokens)
        if self.settings.scales:
            x = x * 2.5  # scaled
        return x


def main(variant):
    torch.manual_seed(0)
    model = Model()
    model.settings = Settings(scales=variant == "reference")
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
