"""In-place against out-of-place."""

import torch
import torch.nn.functional as F

from bench.zoo.models import vision
from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.script import run

CONTROL = True


class BasicBlock(vision.BasicBlock):
    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)), inplace=True)
        h = self.bn2(self.conv2(h))
        h += self.shortcut(x)
        return F.relu_(h)


def main(variant):
    torch.manual_seed(0)
    model = vision.ResNet()
    if variant == "target":
        model.layer1.__class__ = model.layer2.__class__ = BasicBlock
    return train(model, image_batches(2), class_loss)


if __name__ == "__main__":
    run(main)
