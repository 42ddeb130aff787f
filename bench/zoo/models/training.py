"""Training loops and data that the cases share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


def token_batches(count: int = 2, batch: int = 2, length: int = 12, vocabulary: int = 64, seed: int = 1) -> list[Pair]:
    """Return pairs of tokens and next tokens; the global random state stays as it is."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (count, batch, length + 1), generator=generator)
    return [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in tokens]


def image_batches(count: int = 2, batch: int = 4, size: int = 16, classes: int = 10, seed: int = 1) -> list[Pair]:
    """Return pairs of images and labels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, batch, 3, size, size, generator=generator)
    labels = torch.randint(classes, (count, batch), generator=generator)
    return list(zip(images, labels, strict=True))


def language_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token."""
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def class_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the class."""
    return F.cross_entropy(model(images), labels)


def train(
    model: nn.Module,
    batches: Iterable[Pair],
    loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor] = language_loss,
    optimizer: torch.optim.Optimizer | None = None,
    clip: float | None = None,
) -> list[float]:
    """Train a step a batch and return the losses, then the norm of the parameters."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return [*losses, parameter_norm(model)]


def parameter_norm(model: nn.Module) -> float:
    """Return the l2 norm of all parameters together."""
    with torch.no_grad():
        return sum(parameter.double().pow(2).sum().item() for parameter in model.parameters()) ** 0.5
