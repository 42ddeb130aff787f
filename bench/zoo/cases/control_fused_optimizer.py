"""The fused AdamW kernel against the plain one, after clipping."""

import torch

from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.models.vision import ViT
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=variant == "target")
    return train(model, image_batches(3), class_loss, optimizer, clip=0.5)


if __name__ == "__main__":
    run(main)
