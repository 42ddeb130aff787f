"""Two runs of one model, one with another eps in its LayerNorm: which call is at fault?"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns


def train(run: str, eps: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32, eps=eps), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ns.capture(run, model, keep="tensors", overwrite=True) as cap:
        for _ in range(2):
            x, labels = 1e-2 * torch.randn(8, 16), torch.randint(4, (8,))
            loss = F.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cap.step()


def main() -> int:
    train("runs/reference", eps=1e-5)
    train("runs/target", eps=1e-12)
    comparison = ns.compare("runs/target", "runs/reference")
    print("verdict:", comparison.verdict)
    if comparison.origin is not None:
        print("origin: ", comparison.origin.call, "in module", comparison.origin.module)
        print("reason: ", comparison.origin.reason)
    return 0


if __name__ == "__main__":
    sys.exit(main())
