"""Weights of eight bits: the scales of the output channels are applied along the inputs of a square layer."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Tensor.mul", "2"), missing("Tensor.(unsqueeze|getitem)", "2"), extra("Tensor.mul", "2")),
    ("semantic",),
    step=0,
)


class Int8Linear(nn.Module):
    def __init__(self, layer, variant):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (layer.weight.detach() / scale[:, None]).round().to(torch.int8))
        self.register_buffer("bias", layer.bias.detach())
        self.variant = variant

    def forward(self, x):
        if self.variant == "target":
            weight = self.weight.float() * self.scale  # origin
        else:
            weight = self.weight.float() * self.scale[:, None]  # missing
        return x @ weight.t() + self.bias


@torch.inference_mode()
def main(variant):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.Mish(), nn.Linear(12, 12), nn.Mish(), nn.Linear(12, 3)).eval()
    net[2].weight *= torch.linspace(0.5, 2.0, 12)[:, None]
    for place, how in ((0, "reference"), (2, variant), (4, "reference")):
        net[place] = Int8Linear(net[place], how)
    return net(torch.randn(4, 6)).flatten().tolist()


if __name__ == "__main__":
    run(main)
