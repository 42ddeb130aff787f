"""A low-rank adapter is scaled by alpha / sqrt(rank) where the checkpoint was trained with alpha / rank."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Tensor.mul", "model.layers.0.fc1"),), ("semantic",), step=0, repair=("4",))


class LoraLinear(nn.Module):
    def __init__(self, base, rank=4, alpha=16, rslora=False):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        self.scaling = {"default": alpha / rank**0.5 if rslora else alpha / rank}

    def forward(self, x):
        result = self.base_layer(x)
        for name, scale in self.scaling.items():
            result = result + self.lora_B[name](self.lora_A[name](x)) * scale  # origin
        return result


class Layer(nn.Module):
    def __init__(self, size=12):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(size, 24), nn.Linear(24, size)

    def forward(self, x):
        return x + self.fc2(F.relu(self.fc1(x)).square())


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"layers": nn.Sequential(Layer(), Layer()), "head": nn.Linear(12, 3)})

    def forward(self, **batch):
        return self.model["head"](self.model["layers"](batch["x"]))


def main(variant):
    torch.manual_seed(0)
    model = Wrapper()
    for layer in model.model["layers"]:
        layer.fc1 = LoraLinear(layer.fc1, rslora=variant == "target")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    values = []
    for _ in range(2):
        loss = F.cross_entropy(model(x=torch.randn(6, 12)), torch.tensor([0, 1, 2, 0, 1, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
