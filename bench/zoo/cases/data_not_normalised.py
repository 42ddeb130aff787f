"""A numpy data pipeline forgets to subtract the mean of one channel."""

import numpy as np
import torch

from bench.zoo.models.training import class_loss, train
from bench.zoo.models.vision import ResNet
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, data

ORIGIN = Truth((data(), call("Torch.from_numpy")), ("input",), step=0, repair=(r"x - \[0, 0, 1\.796\]",))


def load(variant):
    generator = np.random.default_rng(3)
    for _ in range(2):
        images = generator.random((4, 3, 16, 16), dtype=np.float32)
        labels = generator.integers(0, 10, 4)
        mean = np.array([0.485, 0.456, 0.406], dtype=np.float32)
        if variant == "target":
            mean[2] = 0
        images = (images - mean[:, None, None]) / np.float32(0.226)
        yield torch.from_numpy(images), torch.from_numpy(labels)  # origin


def main(variant):
    torch.manual_seed(0)
    return train(ResNet(), load(variant), class_loss)


if __name__ == "__main__":
    run(main)
