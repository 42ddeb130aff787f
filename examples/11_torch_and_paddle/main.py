"""A model ported from PyTorch to PaddlePaddle: its GELU became the tanh form."""

import numpy as np
import paddle
import torch
from torch import nn

import numscope as ns


class InTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class InPaddle(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = paddle.nn.LayerNorm(8), paddle.nn.Linear(8, 16), paddle.nn.Linear(16, 8)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x + self.down(paddle.nn.functional.gelu(self.up(self.norm(x)), approximate=True))


torch.manual_seed(0)
original, port = InTorch(), InPaddle()
ns.copy_weights(original, port)
batch = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
with ns.capture("runs/torch", original, overwrite=True):
    original(torch.from_numpy(batch)).square().mean().backward()
with ns.capture("runs/paddle", port, overwrite=True):
    port(paddle.to_tensor(batch)).square().mean().backward()
comparison = ns.compare("runs/paddle", "runs/torch")
print(comparison.origin.reason)
