"""A fused projection whose rows are stored head by head (q, k, v of each) is read as all q, all k, all v."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.(view|reshape|unflatten|permute|unbind)"),),
    ("semantic",),
    step=0,
    repair=(r"dims=\[3, 0, 2, 1, 4\]",),
)


class NeoXLayer(nn.Module):
    def __init__(self, hidden_size=24, num_heads=3, variant="reference"):
        super().__init__()
        self.num_heads, self.variant = num_heads, variant
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, 48), nn.GELU(), nn.Linear(48, hidden_size))

    def split(self, qkv):
        b, n, _ = qkv.shape
        if self.variant == "target":
            return qkv.view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # origin
        return qkv.view(b, n, self.num_heads, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)

    def forward(self, hidden_states, **kwargs):
        q, k, v = self.split(self.query_key_value(self.input_layernorm(hidden_states)))
        context = F.scaled_dot_product_attention(q, k, v, **kwargs).transpose(1, 2).flatten(2)
        return hidden_states + self.dense(context) + self.mlp(self.post_attention_layernorm(hidden_states))


def main(variant):
    torch.manual_seed(0)
    embed, head = nn.Embedding(32, 24), nn.Linear(24, 32, bias=False)
    layers = [NeoXLayer(), NeoXLayer(variant=variant)]
    tokens = torch.randint(32, (2, 9))
    params = [p for m in (embed, head, *layers) for p in m.parameters()]
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    values = []
    for _ in range(2):
        x = embed(tokens[:, :-1])
        for layer in layers:
            x = layer(x, is_causal=True)
        loss = F.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
