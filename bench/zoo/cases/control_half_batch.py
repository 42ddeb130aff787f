"""One batch in two equal halves with accumulated gradients."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import language_loss, parameter_norm, token_batches
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = 2 if variant == "target" else 1
    values = []
    for tokens, targets in token_batches(2, batch=4):
        optimizer.zero_grad()
        total = 0.0
        for part in zip(tokens.chunk(parts), targets.chunk(parts), strict=True):
            loss = language_loss(model, *part) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        values.append(total)
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
