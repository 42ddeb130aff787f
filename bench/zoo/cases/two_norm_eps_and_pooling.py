"""One batch norm has another eps, and the classifier is given the maximum of each channel for its mean."""

import torch
import torch.nn.functional as F

from bench.zoo.models import vision
from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing, module

PATH = "layer1.bn2"
ORIGIN = Truth(
    (module(PATH, "BatchNorm2d"), call("Functional.batch_norm", PATH, marker=None)),
    ("semantic",),
    step=0,
    second=(
        extra("Tensor.amax", "", marker="pool"),
        missing("Tensor.mean", "", marker="pool"),
        call("Tensor.(amax|mean)", "", marker="pool"),
    ),
)


class ResNet(vision.ResNet):
    variant = "reference"

    def forward(self, images):
        x = F.relu(self.bn(self.stem(images)))
        x = self.layer2(self.layer1(x))
        if self.variant == "target":
            return self.fc(x.amax((2, 3)))  # pool
        return self.fc(x.mean((2, 3)))  # pool


def main(variant):
    torch.manual_seed(0)
    model = ResNet()
    model.variant = variant
    if variant == "target":
        model.layer1.bn2.eps = 0.1
    return train(model, image_batches(2), class_loss)


if __name__ == "__main__":
    run(main)
