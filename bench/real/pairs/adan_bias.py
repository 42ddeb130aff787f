"""Adan corrected no bias of its moments."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("adan-pytorch==0.0.4", "adan-pytorch==0.0.5", (), ())
BUG = Bug(
    "https://github.com/lucidrains/Adan-pytorch/releases/tag/0.0.5",
    (r".",),
    (r"correct_m|bias_correct",),
)


def main():
    import torch
    from adan_pytorch import Adan
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = Adan(model.parameters(), lr=1e-2)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
