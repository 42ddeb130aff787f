"""Gradient accumulation takes the mean of each micro-batch's mean loss, though their token counts differ."""

import torch
import torch.nn.functional as F

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import parameter_norm, token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.cross_entropy"),), ("semantic",), step=0, repair=("reduction='sum'",))


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    micro = token_batches(4)
    for number, (_, targets) in enumerate(micro):
        targets[:, 2 + 3 * number :] = -100
    values = []
    for first in (0, 2):
        pair = micro[first : first + 2]
        optimizer.zero_grad()
        total = sum(int((targets != -100).sum()) for _, targets in pair)
        for tokens, targets in pair:
            logits = model(tokens).flatten(0, 1)
            if variant == "target":
                loss = F.cross_entropy(logits, targets.flatten())  # origin
                loss = loss / len(pair)
            else:
                loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
                loss = loss / total
            loss.backward()
            values.append(loss.item())
        optimizer.step()
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
