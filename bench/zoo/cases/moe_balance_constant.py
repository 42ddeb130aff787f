"""The load-balancing loss averages the router's probabilities over the wrong axis, and is constant."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Tensor.mean", "layers.0"),), ("semantic",), step=0, repair=("dim=0 ",))


class MoE(moe.MoE):
    def balance_loss(self, probabilities, chosen):
        count = probabilities.shape[-1]
        load = F.one_hot(chosen, count).sum(1).float().mean(0)
        return count * (load * probabilities.mean()).sum()  # origin


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


def main(variant):
    torch.manual_seed(0)
    model = moe.MoEModel()
    if variant == "target":
        for layer in model.layers:
            layer.__class__ = MoE
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
