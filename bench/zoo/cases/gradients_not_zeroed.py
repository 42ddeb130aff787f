"""From the second step on the gradients of the step before are still there."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import language_loss, parameter_norm, token_batches
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing, module, optimizer

ORIGIN = Truth(
    (
        module("head", "Linear", phase="backward"),  # its accumulated gradient is the first that is wrong
        optimizer("SGD"),
        Answer(r".*zero_grad.*", kinds=("missing",), marker=None),
        Answer(r".*parameters_grad.*", marker=None),
        missing("Tensor.zero_"),
    ),
    ("input", "semantic"),
    step=1,
    repair=(r"the gradients zeroed before this step \(now those of step 0",),
)


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    optimizer_ = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for tokens, targets in token_batches(3):
        if variant == "reference":
            optimizer_.zero_grad()  # missing
        loss = language_loss(model, tokens, targets)
        loss.backward()
        optimizer_.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
