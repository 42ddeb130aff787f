"""Mixed precision: the scaled gradients are clipped, because unscale_ is left out."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import language_loss, parameter_norm, token_batches
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth

ORIGIN = Truth(
    (
        Answer(r"(Torch|Tensor|Functional)\.\w+\.\d+\.\w+", marker="origin"),
        Answer(r".*", kinds=("missing",), marker="missing"),
    ),
    ("semantic", "input"),
    step=0,
    repair=("1/1024",),
)


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    values = []
    for tokens, targets in token_batches(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = language_loss(model, tokens, targets)
        scaler.scale(loss).backward()
        if variant == "reference":
            scaler.unscale_(optimizer)  # missing
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # origin
        scaler.step(optimizer)
        scaler.update()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
