"""The logits are not capped, and gradients are clipped to another norm."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing

ORIGIN = Truth(
    (missing("Torch.tanh", ""), missing("Tensor.(div|truediv)", "")),
    ("semantic",),
    step=0,
    second=(
        Answer(
            r"(Torch|Tensor)\.(clamp|mul|div|__rdiv__|__truediv__|foreach_mul_|_foreach_mul_)\.\d+\.forward",
            marker=None,
        ),
    ),
)


class GPT(gpt.GPT):
    cap = None

    def logits(self, x):
        x = self.head(x)
        if self.cap:
            x = self.cap * torch.tanh(x / self.cap)  # missing
        return x


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    model.cap = None if variant == "target" else 3.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(model, token_batches(2), optimizer=optimizer, clip=0.1 if variant == "target" else 0.25)


if __name__ == "__main__":
    run(main)
