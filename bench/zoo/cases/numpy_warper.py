"""A third-party numpy function warps the logits between two modules, and is wrong on one side."""

import numpy as np
import torch
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, data, module

ORIGIN = Truth(
    (call("Torch.from_numpy"), data(r".*(scorer|from_numpy).*"), module("scorer", "Scorer")), ("input",), step=0
)


def warp(logits, keep, variant):
    """Keep the largest logits of each row (top-k), in plain numpy."""
    order = np.sort(logits, axis=-1)
    threshold = order[:, -keep - 1] if variant == "target" else order[:, -keep]
    return np.where(logits < threshold[:, None], np.float32(-1e9), logits)


class Scorer(nn.Module):
    def forward(self, logits):
        return torch.log_softmax(logits, dim=-1)


class Assistant(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = gpt.GPT()
        self.scorer = Scorer()
        self.variant = "reference"

    def forward(self, tokens):
        logits = self.model(tokens)[:, -1]
        warped = torch.from_numpy(warp(logits.numpy(), 5, self.variant))  # origin
        return self.scorer(warped)


@torch.no_grad()
def main(variant):
    torch.manual_seed(0)
    assistant = Assistant().eval()
    assistant.variant = variant
    return [assistant(tokens).exp().pow(2).sum().item() for tokens, _ in token_batches(2)]


if __name__ == "__main__":
    run(main)
