"""A function's default temperature is another; nobody passes one."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.(div|truediv)", "layers.0.router", marker="use"),),
    ("semantic",),
    step=0,
    chain=(r"temperature=1\.5.*default.*(warm|cool)",),
)


def warm(logits, temperature=1.5):
    return F.softmax(logits / temperature, dim=-1)  # use


def cool(logits, temperature=1.0):
    return F.softmax(logits / temperature, dim=-1)


class Router(moe.Router):
    soften = None

    def forward(self, x):
        probabilities = type(self).soften(self.gate(x))
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen, probabilities


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


def main(variant):
    torch.manual_seed(0)
    Router.soften = staticmethod(warm if variant == "target" else cool)
    model = moe.MoEModel()
    for layer in model.layers:
        layer.router.__class__ = Router
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
