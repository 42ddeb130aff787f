"""One layer norm has another eps, and the loss smooths its labels."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

PATH = "blocks.0.ln2"
ORIGIN = Truth(
    (module(PATH, "LayerNorm"), call("Functional.layer_norm", PATH, marker=None)),
    ("semantic",),
    step=0,
    second=(call("Functional.cross_entropy"),),
)


def loss_of(model, tokens, targets):
    smoothing = 0.1 if model.variant == "target" else 0.0
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)  # origin


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    model.variant = variant
    for weight in (model.embed.weight, model.position.weight):
        nn.init.normal_(weight, std=0.02)
    if variant == "target":
        model.blocks[0].ln2.eps = 1e-3
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
