"""Left-padded prompts: positions count the padding, too. The model is functions over a dict of parameters."""

import torch
import torch.nn.functional as F

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.(expand_as|cumsum)"),
        call("Torch.arange"),
        extra("Tensor.expand_as"),
        extra("Torch.arange"),
        missing("Tensor.(cumsum|sub|clamp)"),
    ),
    ("semantic", "input"),
    step=0,
    repair=(r"cumsum.* in place of",),
)


def parameters(dim=24, vocabulary=50, length=16):
    shapes = {
        "wte": (vocabulary, dim),
        "wpe": (length, dim),
        "qkv": (3 * dim, dim),
        "proj": (dim, dim),
        "up": (4 * dim, dim),
        "down": (dim, 4 * dim),
    }
    return {name: (torch.randn(shape) * shape[-1] ** -0.5).requires_grad_() for name, shape in shapes.items()}


def position_ids(attention_mask, variant):
    if variant == "target":
        return torch.arange(attention_mask.shape[1]).expand_as(attention_mask)  # origin
    return attention_mask.cumsum(-1).sub(1).clamp(min=0)  # missing


def forward(p, tokens, attention_mask, variant, heads=3):
    x = F.embedding(tokens, p["wte"]) + F.embedding(position_ids(attention_mask, variant), p["wpe"])
    h = F.layer_norm(x, x.shape[-1:])
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in F.linear(h, p["qkv"]).chunk(3, -1))
    causal = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
    keep = (causal & attention_mask.bool()[:, None, None, :]) | torch.eye(tokens.shape[1]).bool()
    x = x + F.linear(F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).flatten(2), p["proj"])
    x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[-1:]), p["up"])), p["down"])
    return F.linear(F.layer_norm(x, x.shape[-1:]), p["wte"])


def main(variant):
    torch.manual_seed(0)
    p = parameters()
    optimizer = torch.optim.Adam(p.values(), lr=1e-2)
    tokens = torch.randint(1, 50, (3, 10))
    attention_mask = (torch.arange(10) >= torch.tensor([[0], [3], [5]])).long()
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        logits = forward(p, tokens, attention_mask, variant)
        labels = tokens.masked_fill(attention_mask == 0, -100)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
