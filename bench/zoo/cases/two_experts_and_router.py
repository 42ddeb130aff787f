"""Every expert has another activation, and the router's weights are not normalised."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        missing("Tensor.sum", "layers.0.router", marker="divides"),
        missing("Tensor.(div|truediv)", "layers.0.router", marker="divides"),
    ),
    ("semantic",),
    step=0,
    second=(
        call("Functional.(silu|gelu)", marker="activation"),
        extra("Functional.(silu|gelu)", marker="activation"),
        missing("Functional.(silu|gelu)", marker="activation"),
    ),
)


class Expert(moe.Expert):
    variant = "reference"

    def forward(self, x):
        x = self.up(x)
        return self.down(F.gelu(x) if self.variant == "target" else F.silu(x))  # activation


class Router(moe.Router):
    variant = "reference"

    def forward(self, x):
        probabilities = F.softmax(self.gate(x), dim=-1)
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        if self.variant == "reference":
            weights = weights / weights.sum(-1, keepdim=True)  # divides
        return weights, chosen, probabilities


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


def main(variant):
    torch.manual_seed(0)
    model = moe.MoEModel()
    Expert.variant = Router.variant = variant
    for layer in model.layers:
        layer.router.__class__ = Router
        for expert in layer.experts:
            expert.__class__ = Expert
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
