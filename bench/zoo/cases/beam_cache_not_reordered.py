"""Beam search goes on with the other beams' keys and values: the cache is not taken along when beams change places."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth(
    (missing("Tensor.index_select"),), ("semantic", "input"), step=0, repair=(r"axis 0 .*permuted, as 0-1, 0",)
)


class Decoder(nn.Module):
    def __init__(self, vocabulary=20, size=16):
        super().__init__()
        self.word = nn.Embedding(vocabulary, size)
        self.attend = nn.MultiheadAttention(size, 2, batch_first=True)
        self.norm = nn.LayerNorm(size)
        self.project = nn.Linear(size, vocabulary)

    def forward(self, token, past=None):
        x = self.word(token)
        memory = x if past is None else torch.cat([past, x], 1)
        y, _ = self.attend(x, memory, memory, need_weights=False)
        return self.project(self.norm(x + y))[:, -1], memory


def search(model, start, variant, beams=3, length=5):
    token = start.repeat(beams, 1)
    scores = torch.tensor([0.0] + [-1e9] * (beams - 1))
    past, history = None, token
    for _ in range(length):
        logits, past = model(token, past=past)
        total = scores[:, None] + logits.log_softmax(-1)
        scores, flat = total.flatten().topk(beams)
        origin = torch.div(flat, logits.shape[-1], rounding_mode="floor")
        token = (flat % logits.shape[-1])[:, None]
        history = torch.cat([history.index_select(0, origin), token], 1)
        if variant == "reference":
            past = past.index_select(0, origin)  # missing
    return scores, history


@torch.no_grad()
def main(variant):
    torch.manual_seed(3)
    model = Decoder().eval()
    scores, history = search(model, torch.tensor([[4, 7, 1]]), variant)
    return [*scores.tolist(), history.sum().item()]


if __name__ == "__main__":
    run(main)
