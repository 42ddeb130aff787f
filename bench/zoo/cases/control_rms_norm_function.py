"""RMSNorm by torch's function against the one written out."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class RMSNorm(gpt.RMSNorm):
    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.norm1.__class__ = block.norm2.__class__ = RMSNorm
        model.norm.__class__ = RMSNorm
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
