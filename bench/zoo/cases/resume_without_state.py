"""Training resumes from a checkpoint without the optimizer's state."""

import copy

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing, optimizer

ORIGIN = Truth(
    (optimizer("AdamW"), missing("Tensor.to")),
    ("input", "parameter", "semantic"),
    step=2,
    repair=(r"optimizer's state of the steps before",),
)


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    before = torch.optim.AdamW(model.parameters(), lr=1e-2)
    values = train(model, token_batches(2), optimizer=before)
    saved = copy.deepcopy((model.state_dict(), before.state_dict()))
    after = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.load_state_dict(saved[0])
    if variant == "reference":
        after.load_state_dict(saved[1])  # missing
    return values + train(model, token_batches(2, seed=5), optimizer=after)


if __name__ == "__main__":
    run(main)
