"""The router's softmax runs over the tokens, not over the experts."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.softmax", "layers.1.router"),), ("semantic",), step=0, repair=("dim=-1",))


class Router(moe.Router):
    def forward(self, x):
        probabilities = F.softmax(self.gate(x), dim=0)  # origin
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen, probabilities


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


def main(variant):
    torch.manual_seed(0)
    model = moe.MoEModel()
    if variant == "target":
        model.layers[1].router.__class__ = Router
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
