"""The second batch's labels are shifted by one token too many."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, data

ORIGIN = Truth(
    (data(), call("Tensor.getitem"), call("Functional.cross_entropy", marker=None)),
    ("input", "semantic"),
    step=1,
    repair=(r"slice \[:, 1:17\] \(now \[:, 2:18\]\)",),
)


def load(variant):
    tokens = torch.randint(64, (2, 2, 20), generator=torch.Generator().manual_seed(2))
    for number, rows in enumerate(tokens):
        shift = 2 if variant == "target" and number == 1 else 1
        yield rows[:, :16], rows[:, shift : shift + 16]  # origin


def main(variant):
    torch.manual_seed(0)
    return train(GPT(), load(variant))


if __name__ == "__main__":
    run(main)
