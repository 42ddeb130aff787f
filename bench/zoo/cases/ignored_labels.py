"""Padding takes part in the loss: the target's ignore_index is not the padding's label."""

import torch
import torch.nn.functional as F

from bench.zoo.models.sequence import LSTMModel
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.cross_entropy"),), ("semantic",), step=0, repair=("ignore_index=0 ",))


def with_padding(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())  # origin


def without_padding(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=0)


def main(variant):
    torch.manual_seed(0)
    batches = token_batches(2, length=6)
    for _, targets in batches:
        targets[:, -2:] = 0
    return train(LSTMModel(), batches, with_padding if variant == "target" else without_padding)


if __name__ == "__main__":
    run(main)
