"""Adam with its coupled weight decay in place of AdamW."""

import torch

from bench.zoo.models.sequence import LSTMModel
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, optimizer

ORIGIN = Truth(
    (optimizer("AdamW?"), optimizer("AdamW?", kinds=("extra", "missing"))),
    ("semantic",),
    step=0,
    repair=(r"AdamW in place of Adam: decoupled weight decay 0\.1",),
)


def main(variant):
    torch.manual_seed(0)
    model = LSTMModel()
    kind = torch.optim.Adam if variant == "target" else torch.optim.AdamW
    return train(model, token_batches(2, length=6), optimizer=kind(model.parameters(), lr=1e-2, weight_decay=0.1))


if __name__ == "__main__":
    run(main)
