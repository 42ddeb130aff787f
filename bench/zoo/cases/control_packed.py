"""Sentences one after the other with a block mask against a padded batch: the same words, no padding."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Encoder(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.word, self.place = nn.Embedding(30, size), nn.Embedding(8, size)
        self.norm, self.qkv, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.head = nn.Linear(size, 30)

    def forward(self, words, places, mask):
        x = self.word(words) + self.place(places)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).movedim(-3, 0).transpose(-3, -2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(-3, -2).flatten(-2))
        return self.head(x)


def packed(model, sentences):
    lengths = torch.tensor([len(s) for s in sentences])
    owner = torch.repeat_interleave(torch.arange(len(sentences)), lengths)
    places = torch.cat([torch.arange(len(s)) for s in sentences])
    words = torch.cat(sentences)
    return F.cross_entropy(model(words, places, owner[:, None] == owner), words)


def padded(model, sentences):
    words = nn.utils.rnn.pad_sequence(sentences, batch_first=True)
    lengths = torch.tensor([len(s) for s in sentences])
    keep = torch.arange(words.shape[1]) < lengths[:, None]
    logits = model(words, torch.arange(words.shape[1]).expand_as(words), keep[:, None, None])
    return F.cross_entropy(logits[keep], words[keep])


def main(variant):
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        sentences = [torch.randint(1, 30, (length,)) for length in (5, 3, 7)]
        loss = (packed if variant == "target" else padded)(model, sentences)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
