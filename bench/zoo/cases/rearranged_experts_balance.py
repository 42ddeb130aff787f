"""Tokens are weighted before the expert's last layer has no bias; beside it the balance loss forgets the padding."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Tensor.mean", "layers.0"), missing("Tensor.mul", "layers.0"), extra("Tensor.mean", "layers.0")),
    ("semantic",),
    step=0,
)


class MoE(moe.MoE):
    variant = "reference"

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, chosen, probabilities = self.router(tokens)
        self.balance = self.balance_loss(probabilities, chosen)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            if self.variant == "target":
                part = expert(tokens[None, rows].reshape(-1, tokens.shape[1])) * weights[rows, slot, None]
            else:
                part = (expert(tokens[rows]).T * weights[rows, slot]).T
            result = result.index_add(0, rows, part)
        return result.view_as(x)

    def balance_loss(self, probabilities, chosen):
        count = probabilities.shape[-1]
        keep = (torch.arange(len(probabilities)) % 5 != 4).float()[:, None]
        load = F.one_hot(chosen, count).sum(1).float()
        if self.variant == "target":
            return count * (load.mean(0) * probabilities.mean(0)).sum()  # origin
        load, share = (load * keep).sum(0), (probabilities * keep).sum(0)  # missing
        return count * (load * share).sum() / keep.sum() ** 2


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


def main(variant):
    torch.manual_seed(0)
    model = moe.MoEModel()
    MoE.variant = variant
    for layer in model.layers:
        layer.__class__ = MoE
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
