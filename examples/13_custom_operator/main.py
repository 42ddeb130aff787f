"""An operator of your own: its hand-written gradient forgets a factor, and only backward is wrong."""

import torch
from torch import nn

import numscope as ns


class Softcap(torch.autograd.Function):
    correct = True

    @staticmethod
    def forward(ctx, x: torch.Tensor, cap: float) -> torch.Tensor:
        y = torch.tanh(x / cap)
        ctx.save_for_backward(y)
        ctx.cap = cap
        return cap * y

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple:
        (y,) = ctx.saved_tensors
        slope = 1 - y * y
        return gradient * (slope if Softcap.correct else slope / ctx.cap), None


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(Softcap.apply(self.up(x), 5.0))


def run(path: str, correct: bool) -> None:
    torch.manual_seed(0)
    model, Softcap.correct = Model(), correct
    with ns.capture(path, model, overwrite=True):
        model(torch.randn(6, 8)).square().mean().backward()


run("runs/reference", correct=True)
run("runs/target", correct=False)
origin = ns.compare("runs/target", "runs/reference").origin
print(origin.phase, origin.call)
print(origin.reason)
