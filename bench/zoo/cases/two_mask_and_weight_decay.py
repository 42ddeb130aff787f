"""The mask lets one more position in, and two groups of the optimizer share one weight decay."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call

ORIGIN = Truth(
    (call("Tensor.(le|lt|add)", "", marker="mask"),),
    ("semantic",),
    step=0,
    second=(Answer(r"Optimizer\.AdamW\.step\.\d+", ("optimizer",), marker=None),),
)


class GPT(gpt.GPT):
    more = 0

    def mask(self, past, length):
        rows = torch.arange(past, past + length).unsqueeze(1)
        return torch.arange(past + length).unsqueeze(0) <= rows + self.more  # mask


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    model.more = int(variant == "target")
    norms = [one for name, one in model.named_parameters() if "norm" in name]
    others = [one for name, one in model.named_parameters() if "norm" not in name]
    decay = 0.1 if variant == "target" else 0.0
    groups = [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": decay}]
    return train(model, token_batches(3), optimizer=torch.optim.AdamW(groups, 1e-3))


if __name__ == "__main__":
    run(main)
