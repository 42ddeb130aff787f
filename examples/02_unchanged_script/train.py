"""An ordinary training script."""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=args.dropout, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        x = torch.randn(4, 8, 16)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
