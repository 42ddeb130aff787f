"""A square weight is applied without its transposition."""

import torch
import torch.nn.functional as F

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing, module

PATH = "blocks.1.attn"
ORIGIN = Truth(
    (
        call("(Tensor|Torch).matmul", PATH),
        call("Functional.linear", PATH),
        extra("Tensor.matmul", PATH),
        missing("Functional.linear", f"{PATH}.proj", marker=None),
        missing("Functional.linear", PATH, marker=None),
        module(f"{PATH}.proj", "Linear", kinds=("missing",)),
    ),
    ("semantic",),
    step=0,
    repair=("transpos",),
)


class Attention(classic.Attention):
    variant = "reference"

    def forward(self, x, padding=None):
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        x = self.attend(q, k, v, padding).transpose(1, 2).reshape(batch, length, dim)
        if self.variant == "target":
            return x @ self.proj.weight + self.proj.bias  # origin
        return F.linear(x, self.proj.weight, self.proj.bias)  # missing


def main(variant):
    torch.manual_seed(0)
    Attention.variant = variant
    model = classic.ClassicGPT()
    model.blocks[1].attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
