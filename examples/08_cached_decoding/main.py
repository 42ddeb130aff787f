"""Decoding with a cache of keys and values, against decoding without: the answer of a chat model changes after some words.

The cache's positions begin at 0 again with every new token. The first forward pass (the prompt) is right, so that a look
at one step finds nothing.
"""

import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns


class Decoder(nn.Module):
    def __init__(self, correct: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(32, 16)
        self.qkv, self.head, self.correct = nn.Linear(16, 48), nn.Linear(16, 40), correct

    def forward(self, tokens: torch.Tensor, cache: tuple | None = None) -> tuple:
        past = cache[0].shape[1] if cache else 0
        start = past if self.correct else 0
        x = self.words(tokens) + self.places(torch.arange(start, start + tokens.shape[1]))
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=not cache)), (k, v)


def run(path: str, correct: bool) -> list[int]:
    torch.manual_seed(0)
    model, said, cache = Decoder(correct).eval(), [], None
    tokens = torch.randint(0, 40, (1, 6))
    with ns.capture(path, model, overwrite=True) as capture, torch.no_grad():
        for _ in range(4):
            logits, cache = model(tokens, cache)
            tokens = logits[:, -1:].argmax(-1)
            said.append(tokens.item())
            capture.step()
    return said


print("the reference says", run("runs/reference", correct=True))
print("the target says   ", run("runs/target", correct=False))
origin = ns.compare("runs/target", "runs/reference").origin
print(f"step {origin.step}: {origin.reason}")
