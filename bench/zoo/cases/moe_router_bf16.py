"""The router's logits are computed in bf16 where the reference uses float32."""

import torch
import torch.nn.functional as F

from bench.zoo.models import moe
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

PATH = "layers.0.router"
NAMES = ("Tensor.(to|bfloat16)", "Functional.linear")
ORIGIN = Truth(
    (*(call(name, PATH) for name in NAMES), *(extra(name, PATH) for name in NAMES)),
    ("precision",),
    step=0,
    repair=("cast", "float32"),
)


class Router(moe.Router):
    variant = "reference"

    def forward(self, x):
        weight = self.gate.weight
        if self.variant == "target":
            logits = F.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16)).float()  # origin
        else:
            logits = F.linear(x, weight)
        probabilities = F.softmax(logits, dim=-1)
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen, probabilities


def loss_of(model, tokens, targets):
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


def main(variant):
    torch.manual_seed(0)
    Router.variant = variant
    model = moe.MoEModel()
    for layer in model.layers:
        layer.router.__class__ = Router
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
