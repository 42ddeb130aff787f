"""Adan corrected the bias of its second moment in the rate, where its eps then weighs more."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("adan-pytorch==0.0.5", "adan-pytorch==0.1.0", (), ())
BUG = Bug(
    "https://github.com/lucidrains/Adan-pytorch",
    (r".",),
    (r"correct_n|sqrt_bias_correct3",),
)


def main():
    import torch
    from adan_pytorch import Adan
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = Adan(model.parameters(), lr=1e-2, eps=1e-4)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
