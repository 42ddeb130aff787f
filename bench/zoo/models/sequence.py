"""A language model on an LSTM cell written out, and a variational autoencoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Cell(nn.Module):
    """One step of an LSTM, gates in the order input, forget, cell, output."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.input = nn.Linear(dim, 4 * dim)
        self.hidden = nn.Linear(dim, 4 * dim)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (self.input(x) + self.hidden(h)).chunk(4, dim=-1)
        keep = torch.sigmoid(f) * c
        c = keep + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class LSTMModel(nn.Module):
    """Embedding, the cell over time, head."""

    def __init__(self, vocabulary: int = 64, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.cell = Cell(dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        h, c = x.new_zeros(x.shape[0], x.shape[2]), x.new_zeros(x.shape[0], x.shape[2])
        outputs = []
        for time in range(x.shape[1]):
            h, c = self.cell(x[:, time], h, c)
            outputs.append(h)
        return self.head(torch.stack(outputs, dim=1))


class VAE(nn.Module):
    """A fully connected variational autoencoder."""

    def __init__(self, inputs: int = 48, hidden: int = 32, latent: int = 8) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, inputs))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, dim=-1)
        return self.decode(self.draw(mean, log_variance)), mean, log_variance

    def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        deviation = torch.exp(0.5 * log_variance)
        return mean + deviation * torch.randn_like(deviation)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence from the standard normal, averaged over the batch."""
    terms = 1 + log_variance - mean.pow(2) - log_variance.exp()
    return -0.5 * terms.sum(-1).mean()


def vae_loss(model: VAE, x: Tensor) -> Tensor:
    """Return reconstruction plus divergence."""
    reconstruction, mean, log_variance = model(x)
    return F.mse_loss(reconstruction, x) + 0.01 * divergence(mean, log_variance)
