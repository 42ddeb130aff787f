"""Router weights come of the logits, and the load is not averaged in the second layer's balance."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Functional.softmax", "layers.0.router", marker="weights"),
        call("Torch.topk", "layers.0.router", marker="weights"),
        missing("Functional.softmax", "layers.0.router", marker="weights"),
        call("Torch.sigmoid", "layers.0.router", marker="weights"),
        extra("Torch.sigmoid", "layers.0.router", marker="weights"),
    ),
    ("semantic",),
    step=0,
    second=(
        call("Tensor.(mean|sum)", "layers.1", marker="load"),
        extra("Tensor.sum", "layers.1", marker="load"),
        missing("Tensor.mean", "layers.1", marker="load"),
    ),
)


class Router(moe.Router):
    variant = "reference"

    def forward(self, x):
        logits = self.gate(x)
        probabilities = torch.sigmoid(logits) if self.variant == "target" else F.softmax(logits, dim=-1)  # weights
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen, probabilities


class MoE(moe.MoE):
    variant = "reference"

    def balance_loss(self, probabilities, chosen):
        count = probabilities.shape[-1]
        hot = F.one_hot(chosen, count).sum(1).float()
        load = hot.sum(0) if self.variant == "target" else hot.mean(0)  # load
        return count * (load * probabilities.mean(0)).sum()


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.01 * balance


def main(variant):
    torch.manual_seed(0)
    model = moe.MoEModel()
    model.layers[0].router.__class__ = Router
    model.layers[0].router.variant = variant
    model.layers[1].__class__ = MoE
    model.layers[1].variant = variant
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
