"""Prodigy's numerator summed up apart."""

from bench.real.pair import Releases, run

RELEASES = Releases("prodigyopt==1.1", "prodigyopt==1.1.2", (), ())


def main():
    import torch
    from prodigyopt import Prodigy
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = Prodigy(model.parameters())
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
