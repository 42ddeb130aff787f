"""Batches from a DataLoader with a collate function against slices of the data in the same order, and other clipping."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from bench.zoo.script import run

CONTROL = True


def collate(rows):
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def sliced(rows, size):
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        tokens = torch.zeros(len(part), max(map(len, part)), dtype=torch.long)
        for number, row in enumerate(part):
            tokens[number, : len(row)] = row
        yield tokens, torch.as_tensor([row.numel() for row in part])


def clip(parameters, limit):
    gradients = [p.grad for p in parameters]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(15, 8, padding_idx=0)
        self.out = nn.Linear(8, 1)

    def forward(self, tokens, lengths):
        return self.out(self.embed(tokens).sum(1) / lengths[:, None]).squeeze(-1)


def main(variant):
    torch.manual_seed(0)
    rows = [torch.randint(1, 15, (3 + number % 4,)) for number in range(12)]
    model = Counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = sliced(rows, 4) if variant == "target" else DataLoader(rows, batch_size=4, collate_fn=collate)
    values = []
    for tokens, lengths in batches:
        loss = F.mse_loss(model(tokens, lengths), lengths.float())
        optimizer.zero_grad()
        loss.backward()
        if variant == "target":
            clip(list(model.parameters()), 0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
