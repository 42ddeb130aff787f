"""The caller does not pass the number of items, so that the loss is the mean over the padded part."""

import torch
import torch.nn.functional as F

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Functional.cross_entropy", marker="use"),
        missing("Tensor.(div|truediv)", marker="divides"),
        extra("Functional.cross_entropy", marker="use"),
    ),
    ("semantic",),
    step=0,
    chain=("@caller",),
)


def token_loss(logits, targets, count=None):
    reduction = "sum" if count is not None else "mean"
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)  # use
    if count is not None:
        loss = loss / count  # divides
    return loss


def without_count(model, tokens, targets):
    return token_loss(model(tokens), targets)  # caller


def with_count(model, tokens, targets):
    return token_loss(model(tokens), targets, count=17)


def main(variant):
    torch.manual_seed(0)
    loss_of = without_count if variant == "target" else with_count
    return train(GPT(), token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
