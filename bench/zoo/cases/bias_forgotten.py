"""The classifier's bias is left out."""

import torch
import torch.nn.functional as F

from bench.zoo.models import vision
from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.linear", ""),), ("semantic",), step=0, repair=("bias",))


class ResNet(vision.ResNet):
    variant = "reference"

    def forward(self, images):
        x = F.relu(self.bn(self.stem(images)))
        x = self.layer2(self.layer1(x)).mean((2, 3))
        if self.variant == "target":
            return F.linear(x, self.fc.weight)  # origin
        return F.linear(x, self.fc.weight, self.fc.bias)


def main(variant):
    torch.manual_seed(0)
    ResNet.variant = variant
    model = ResNet()
    body = [parameter for name, parameter in model.named_parameters() if name != "fc.bias"]
    return train(model, image_batches(2), class_loss, torch.optim.SGD(body, lr=0.1))


if __name__ == "__main__":
    run(main)
