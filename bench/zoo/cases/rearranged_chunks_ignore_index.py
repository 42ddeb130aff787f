"""The loss is added up in chunks, which is harmless; its divisor counts the ignored labels too."""

import torch
import torch.nn.functional as F

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.(div|truediv)"),
        extra("Tensor.(div|truediv)"),
        missing("Tensor.(ne|sum)"),
        missing("Functional.cross_entropy"),
        Answer(r"Functional\.cross_entropy\.\d+\.forward", ("api", "extra"), marker="sum"),
    ),
    ("semantic",),
    step=0,
)


def by_chunks(model, tokens, targets):
    logits = model(tokens)
    total = 0.0
    for part, labels in zip(logits.chunk(3, dim=1), targets.chunk(3, dim=1), strict=True):
        total = total + F.cross_entropy(part.flatten(0, 1), labels.flatten(), reduction="sum")  # sum
    return total / targets.numel()  # origin


def at_once(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())  # missing


def main(variant):
    torch.manual_seed(0)
    batches = token_batches(2)
    for _, targets in batches:
        targets[:, ::4] = -100
    return train(GPT(), batches, by_chunks if variant == "target" else at_once)


if __name__ == "__main__":
    run(main)
