"""Decoding reads one layer's cached values from a buffer that nobody filled."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

PATH = "blocks.1.attn"
ORIGIN = Truth(
    (missing("Torch.cat", PATH), call("Tensor.getitem", PATH), extra("Tensor.getitem", PATH)),
    ("semantic",),
    repair=(r"cat in place of getitem \(dim=2\)",),
)


class Attention(gpt.Attention):
    variant = "reference"

    def forward(self, x, cosine, sine, mask, cache=None):
        q, k, v = self.project(x)
        q, k = gpt.rotate(q, cosine, sine), gpt.rotate(k, cosine, sine)
        if cache:
            if self.variant == "reference":
                v = torch.cat([cache[1], v], dim=2)  # missing
            else:
                v = cache[2][:, :, : cache[1].shape[2] + 1]  # origin
            k = torch.cat([cache[0], k], dim=2)
        cache[:] = [k, v, torch.zeros(*v.shape[:2], 64, v.shape[3])]
        return self.join(self.attend(q, self.spread(k), self.spread(v), mask))


def main(variant):
    torch.manual_seed(0)
    Attention.variant = variant
    model = gpt.GPT().eval()
    model.blocks[1].attn.__class__ = Attention
    return gpt.generate(model, token_batches(1)[0][0], 4)[1]


if __name__ == "__main__":
    run(main)
