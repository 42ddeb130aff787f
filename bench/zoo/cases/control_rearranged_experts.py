"""The experts' results are weighted in two layouts, and gathered in two orders."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class MoE(moe.MoE):
    variant = "reference"

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, chosen, probabilities = self.router(tokens)
        self.balance = self.balance_loss(probabilities, chosen)
        result = torch.zeros_like(tokens)
        numbers = range(len(self.experts))
        for number in reversed(numbers) if self.variant == "target" else numbers:
            rows, slot = torch.where(chosen == number)
            if self.variant == "target":
                part = self.experts[number](tokens[None, rows].reshape(-1, tokens.shape[1])) * weights[rows, slot, None]
            else:
                part = (self.experts[number](tokens[rows]).T * weights[rows, slot]).T
            result = result.index_add(0, rows, part)
        return result.view_as(x)


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
