"""The warm-up starts at step 0 instead of 1: the first update has no learning rate."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import language_loss, parameter_norm, token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, optimizer

ORIGIN = Truth((optimizer("AdamW"),), ("semantic",), step=0, repair=("lr=0.002",))


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    optimizer_ = torch.optim.AdamW(model.parameters(), lr=1e-2)
    offset = 1 if variant == "target" else 2
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer_, lambda step: (step + offset) / 10)
    values = []
    for tokens, targets in token_batches(3):
        optimizer_.zero_grad()
        loss = language_loss(model, tokens, targets)
        loss.backward()
        optimizer_.step()
        schedule.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
