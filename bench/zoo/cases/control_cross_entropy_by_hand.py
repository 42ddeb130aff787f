"""The loss as logsumexp minus the label's logit, with its own mean over the valid labels, against cross_entropy."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


def by_hand(logits, labels):
    valid = labels.ne(-100)
    top = logits.detach().amax(-1, keepdim=True)
    normaliser = (logits - top).exp().sum(-1).log() + top.squeeze(-1)
    picked = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return ((normaliser - picked) * valid).sum() / valid.sum()


def library(logits, labels):
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)


def main(variant):
    torch.manual_seed(0)
    loss_fn = by_hand if variant == "target" else library
    model = nn.Sequential(
        nn.Embedding(40, 16),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True),
        nn.LayerNorm(16),
        nn.Linear(16, 40),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(3):
        tokens = torch.randint(40, (4, 9))
        labels = tokens[:, 1:].clone()
        labels[0, :3] = -100
        loss = loss_fn(model(tokens[:, :-1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
