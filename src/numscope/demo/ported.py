"""The same GPT after a port: one layer was given the quicker GELU of another code base. The run under suspicion."""

import torch
import torch.nn.functional as F
from torch import nn

TEXT = "the first operator at which two runs of a model stop agreeing is the one to look at; all later ones inherit. "
LETTERS = sorted(set(TEXT))
WIDTH, HEADS, LAYERS, BATCH, LENGTH = 64, 4, 4, 8, 48


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(batch, length, WIDTH))


class MLP(nn.Module):
    def __init__(self, quick):
        super().__init__()
        self.quick = quick
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = self.up(x)
        x = F.gelu(x, approximate="tanh") if self.quick else F.gelu(x)
        return self.down(x)


class Block(nn.Module):
    def __init__(self, quick):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = MLP(quick)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(quick=layer == 2) for layer in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)

    def forward(self, letters):
        x = self.embedding(letters) + self.position(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(steps):
    letters = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    for _ in range(steps):
        starts = torch.randint(len(letters) - LENGTH, (BATCH,))
        windows = torch.stack([letters[start : start + LENGTH + 1] for start in starts])
        yield windows[:, :-1], windows[:, 1:]


def main():
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (letters, following) in enumerate(batches(steps=2)):
        loss = F.cross_entropy(model(letters).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
