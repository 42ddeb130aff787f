"""Embeddings are not scaled, and the warm-up takes its second step at the full rate."""

import torch

from bench.zoo.models import classic
from bench.zoo.models.training import language_loss, token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing, optimizer

ORIGIN = Truth(
    (missing("Tensor.mul", "", marker="scaled"),),
    ("semantic",),
    step=0,
    second=(optimizer("AdamW"),),
)


class ClassicGPT(classic.ClassicGPT):
    variant = "reference"

    def forward(self, tokens, padding=None):
        x = self.embed(tokens)
        if self.variant == "reference":
            x = x * x.shape[-1] ** 0.5  # scaled
        x = x + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x, padding)
        return self.head(self.ln(x))


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    model.variant = variant
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rates = (0.25, 1.0, 1.0) if variant == "target" else (0.25, 0.5, 1.0)
    losses = []
    for (tokens, targets), rate in zip(token_batches(3), rates, strict=True):
        optimizer.param_groups[0]["lr"] = 1e-3 * rate
        optimizer.zero_grad()
        loss = language_loss(model, tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    run(main)
