"""The padding mask of the first batch is cached, and used for the second one too."""

import torch

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, data, missing

ORIGIN = Truth(
    (
        missing("Tensor.(ne|lt|gt)", ""),
        call("Tensor.(and|getitem)", "blocks.0.attn", marker=None),
        Answer(r"Module\.(blocks\.0(\.attn)?\.)?(Attention|Block)\.forward\.\d+", marker=None),
        data(r".*padding.*"),
    ),
    ("input", "semantic"),
    step=1,
    repair=(r"missing: Tensor\.ne",),
)


class ClassicGPT(classic.ClassicGPT):
    variant = "reference"
    cached = None

    def forward(self, tokens, padding=None):
        if self.variant == "target":
            if self.cached is None:
                self.cached = tokens != 0
            padding = self.cached
        else:
            padding = tokens != 0  # missing
        return super().forward(tokens, padding)


def main(variant):
    torch.manual_seed(0)
    ClassicGPT.variant = variant
    batches = token_batches(3)
    for number, (tokens, _) in enumerate(batches):
        tokens[:, -2 - 2 * number :] = 0
    return train(ClassicGPT(), batches)


if __name__ == "__main__":
    run(main)
