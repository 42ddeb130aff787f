"""The model works on (length, batch, width) against (batch, length, width)."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Encoder(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.word = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=batch_first)
        self.gru = nn.GRU(16, 16, batch_first=batch_first)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens):
        x = self.word(tokens if self.batch_first else tokens.t())
        logits = self.head(self.gru(self.layer(x))[0])
        return logits if self.batch_first else logits.transpose(0, 1)


def main(variant):
    torch.manual_seed(0)
    model = Encoder(batch_first=variant == "reference")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        tokens = torch.randint(30, (3, 8))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
