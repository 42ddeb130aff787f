"""The vocabulary is padded to a multiple of 16, and the padding takes part in the softmax."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (missing("Tensor.getitem"), call("Functional.cross_entropy", marker="consumer")),
    ("semantic",),
    step=0,
    repair=(":57",),
)
VARIANT = ["reference"]


def loss_of(model, tokens, targets):
    logits = model(tokens).flatten(0, 1)
    if VARIANT[0] == "reference":
        logits = logits[:, :57]  # missing
    return F.cross_entropy(logits, targets.flatten())  # consumer


def main(variant):
    torch.manual_seed(0)
    VARIANT[0] = variant
    return train(gpt.GPT(), token_batches(2, vocabulary=57), loss_of)


if __name__ == "__main__":
    run(main)
