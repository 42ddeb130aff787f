"""SGD's momentum differs, which shows from the second update on."""

import torch

from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.models.vision import ResNet
from bench.zoo.script import run
from bench.zoo.truth import Truth, optimizer

ORIGIN = Truth((optimizer("SGD"),), ("semantic",), repair=("momentum=0.9",))


def main(variant):
    torch.manual_seed(0)
    model = ResNet()
    momentum = 0.8 if variant == "target" else 0.9
    return train(model, image_batches(3), class_loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum))


if __name__ == "__main__":
    run(main)
