"""A function between the layer and its kernel takes the scale, and does not hand it on."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Functional.scaled_dot_product_attention", "blocks.0.attn", marker="kernel"),),
    ("semantic",),
    step=0,
    chain=(r"scale=",),
)


def dropping(q, k, v, mask, scale=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # kernel


def handing(q, k, v, mask, scale=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)  # kernel


class Attention(gpt.Attention):
    kernel = None

    def attend(self, q, k, v, mask):
        return type(self).kernel(q, k, v, mask, scale=0.2)


def main(variant):
    torch.manual_seed(0)
    Attention.kernel = staticmethod(dropping if variant == "target" else handing)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
