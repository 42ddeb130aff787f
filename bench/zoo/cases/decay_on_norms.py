"""Weight decay is applied to biases and norms as well."""

import torch

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, optimizer

ORIGIN = Truth((optimizer("AdamW"),), ("semantic",), step=0, repair=("weight_decay=0 ",))


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    if variant == "target":
        groups[1]["weight_decay"] = 0.1
    return train(model, token_batches(2), optimizer=torch.optim.AdamW(groups, lr=1e-2))


if __name__ == "__main__":
    run(main)
