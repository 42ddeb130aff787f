"""A converted checkpoint: query, key and value were fused in another order. Shapes fit, so that loading says nothing."""

import torch
from torch import nn

import numscope as ns


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v))


def converted(state: dict) -> dict:
    q, k, v = state["qkv.weight"].chunk(3)
    return {**state, "qkv.weight": torch.cat([k, q, v])}


def run(path: str, model: nn.Module) -> None:
    with ns.capture(path, model, overwrite=True), torch.no_grad():
        model(torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1)))


torch.manual_seed(0)
original, other = Attention(), Attention()
other.load_state_dict(converted(original.state_dict()))
run("runs/reference", original)
run("runs/target", other)
origin = ns.compare("runs/target", "runs/reference").origin
print(origin.kind, origin.call)
print(origin.reason)
