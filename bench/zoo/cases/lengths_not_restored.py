"""Sentences are sorted by length for packing and put back by the sorting order itself, not by its inverse."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (call("Tensor.(getitem|index_select)"), missing("Tensor.argsort")),
    ("semantic", "input"),
    step=0,
    repair=(r"missing: Tensor\.argsort",),
)


class Reader(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.variant = variant
        self.word, self.gru, self.out = nn.Embedding(25, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, words, lengths):
        order = lengths.argsort(descending=True)
        packed = pack_padded_sequence(self.word(words[order]), lengths[order], batch_first=True)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        if self.variant == "target":
            states = states[order]  # origin
        else:
            states = states[order.argsort()]  # missing
        return self.out(states.sum(1) / lengths[:, None])


def main(variant):
    torch.manual_seed(0)
    model = Reader(variant)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    values = []
    for _ in range(2):
        words, lengths = torch.randint(25, (4, 7)), torch.tensor([3, 7, 2, 5])
        loss = F.cross_entropy(model(words, lengths), torch.tensor([0, 1, 2, 3]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
