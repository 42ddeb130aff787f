"""A layer's caller does not pass the padding mask on."""

import torch

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call

ORIGIN = Truth(
    (
        call("Functional.scaled_dot_product_attention", "blocks.1.attn", marker=None),
        Answer(r"Tensor\.(and|__and__|getitem|__getitem__)\.\d+\.forward", ("missing",), "blocks.1.attn", marker=None),
        Answer(r"Module\.blocks\.1(\.attn)?\.(Block|Attention)\.forward\.0", marker=None),
        Answer(r"Torch\.ones\.\d+\.forward", ("missing",), "blocks.1.attn", marker=None),
        Answer(r"Tensor\.tril\.\d+\.forward", ("missing",), "blocks.1.attn", marker=None),
    ),
    ("semantic", "input"),
    step=0,
    chain=("@caller",),
)


class Block(classic.Block):
    forgets = False

    def forward(self, x, padding=None):
        if self.forgets:
            x = x + self.attn(self.ln1(x))  # caller
        else:
            x = x + self.attn(self.ln1(x), padding)
        return x + self.mlp(self.ln2(x))


class ClassicGPT(classic.ClassicGPT):
    def forward(self, tokens, padding=None):
        return super().forward(tokens, tokens != 0)


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    for block in model.blocks:
        block.__class__ = Block
    model.blocks[1].forgets = variant == "target"
    batches = token_batches(2)
    for tokens, _ in batches:
        tokens[:, :2] = 0
        tokens[:, 0] = 1
    return train(model, batches)


if __name__ == "__main__":
    run(main)
