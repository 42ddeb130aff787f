"""The router's weights are detached: the forward is the same, the router learns nothing."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, extra, missing

PATH = "layers.1.router"
ORIGIN = Truth(
    (
        extra("Tensor.detach", PATH),
        # The first gradient that is not there: of the product with the detached weights.
        call("Tensor.mul", "layers.1", marker=None, phase="backward"),
        missing("Tensor.unsqueeze", "layers.1", marker=None, phase="backward"),
        Answer(r"Tensor\.(__)?(true)?div(__)?\.\d+\.backward", module=PATH, marker="missing", kinds=("missing",)),
    ),
    ("semantic",),
    step=0,
    repair=("without .*detach",),
)


class Router(moe.Router):
    variant = "reference"

    def forward(self, x):
        probabilities = F.softmax(self.gate(x), dim=-1)
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)  # missing
        if self.variant == "target":
            weights = weights.detach()  # origin
        return weights, chosen, probabilities


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


def main(variant):
    torch.manual_seed(0)
    Router.variant = variant
    model = moe.MoEModel()
    model.layers[1].router.__class__ = Router
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
