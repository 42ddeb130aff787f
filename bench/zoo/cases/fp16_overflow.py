"""In fp16 the gated product of block 1 overflows; the reference runs in float32."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.mul", "blocks.1.mlp"),), ("precision",), step=0, repair=(r"in float32, without the cast to float16",)
)


class SwiGLU(gpt.SwiGLU):
    def forward(self, x):
        gate, up = F.silu(self.gate(x)), self.up(x)
        return self.down(gate * up)  # origin


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT().eval()
    mlp = model.blocks[1].mlp
    mlp.__class__ = SwiGLU
    with torch.no_grad():
        mlp.gate.weight.mul_(400)
        mlp.up.weight.mul_(400)
        mlp.down.weight.mul_(1e-5)
        if variant == "target":
            model.half()
        return [model(tokens).float().norm().item() for tokens, _ in token_batches(2)]


if __name__ == "__main__":
    run(main)
