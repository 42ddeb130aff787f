"""The padding mask of a TransformerEncoder says what to keep, where torch wants what to leave out."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Tensor.(ne|eq)"), extra("Tensor.ne"), missing("Tensor.eq")),
    ("semantic", "input"),
    step=0,
    repair=(r"eq in place of ne",),
)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(30, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.tag = nn.Linear(16, 6)

    def forward(self, words, src_key_padding_mask):
        return self.tag(self.encoder(self.word(words), src_key_padding_mask=src_key_padding_mask))


def main(variant):
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    words = torch.randint(1, 30, (3, 8))
    words[1, 6:] = 0
    words[2, 4:] = 0
    words[0, 7:] = 0
    tags = torch.randint(6, (3, 8)).masked_fill(words == 0, -100)
    values = []
    for _ in range(2):
        if variant == "target":
            mask = words != 0  # origin
        else:
            mask = words == 0  # missing
        loss = F.cross_entropy(model(words, src_key_padding_mask=mask).transpose(1, 2), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
