"""RoPE's angles are computed in bf16, where distant positions become one."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

LINE = ("Tensor.to", "Tensor.bfloat16", "Torch.outer")
ORIGIN = Truth(
    (*(call(name, "rope") for name in LINE), *(extra(name, "rope") for name in LINE)),
    ("precision",),
    step=0,
    repair=(r"in float32, without the cast to bfloat16",),
)


class Rope(gpt.Rope):
    def forward(self, positions):
        angles = torch.outer(positions.to(torch.bfloat16), self.frequencies.to(torch.bfloat16))  # origin
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().float(), angles.sin().float()


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        model.rope.__class__ = Rope
    return train(model, token_batches(2, length=40))


if __name__ == "__main__":
    run(main)
