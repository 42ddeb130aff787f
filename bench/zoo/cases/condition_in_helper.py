"""A helper normalises only where its caller asks for it; one caller does not."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth(
    (
        missing("Functional.normalize", "blocks.0.attn", marker="normalised"),
        missing("Tensor.(div|truediv)", "blocks.0.attn", marker="normalised"),
        missing("Tensor.norm", "blocks.0.attn", marker="normalised"),
    ),
    ("semantic",),
    step=0,
    chain=(r"does not pass unit|unit=|prepared\(q\)",),
)


def prepared(x, unit=False):
    if unit:
        x = F.normalize(x, dim=-1) * 3.0  # normalised
    return x


class Left(gpt.Attention):
    def attend(self, q, k, v, mask):
        return super().attend(prepared(q), k, v, mask)


class Right(gpt.Attention):
    def attend(self, q, k, v, mask):
        return super().attend(prepared(q, unit=True), k, v, mask)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Left if variant == "target" else Right
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
