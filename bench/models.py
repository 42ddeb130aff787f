"""The models that are measured, and their training step: plain torch, for numscope's environment and for msprobe's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

THREADS = 2
VOCABULARY = 128


@dataclass(frozen=True)
class Shape:
    """The size of a model and of its batch."""

    layers: int
    width: int
    feed_forward: int
    batch: int
    length: int
    heads: int = 4


SHAPES = {
    "TinyLM, 2 layers": Shape(layers=2, width=64, feed_forward=128, batch=4, length=32),
    "TinyLM, 12 layers": Shape(layers=12, width=64, feed_forward=128, batch=4, length=32),
    "Medium": Shape(layers=2, width=256, feed_forward=1024, batch=8, length=128),
    "TinyLM, 56 layers": Shape(layers=56, width=64, feed_forward=128, batch=4, length=32),
}


class LanguageModel(nn.Module):
    """Embedding, encoder layers, and a head over the vocabulary."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(shape.width, shape.heads, shape.feed_forward, dropout=0.1, batch_first=True)
            for _ in range(shape.layers)
        )
        self.head = nn.Linear(shape.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build(name: str, seed: int = 0, perturb: float = 0.0) -> tuple[nn.Module, Callable[[], None]]:
    """Return the model and one training step of it; `perturb` adds noise to one weight, so that two runs differ."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(seed)
    shape = SHAPES[name]
    model = LanguageModel(shape)
    if perturb:
        with torch.no_grad():
            model.layers[shape.layers // 2].linear1.weight.mul_(1 + perturb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (shape.batch, shape.length))
    following = torch.randint(VOCABULARY, (shape.batch, shape.length))
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of(model(tokens).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()

    return model, step
