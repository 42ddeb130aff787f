"""Muon's two ways to adjust the rate were exchanged."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("pytorch_optimizer==3.5.0", "pytorch_optimizer==3.5.1", (), ())
BUG = Bug(
    "https://github.com/kozistr/pytorch_optimizer/pull/368",
    (r".",),
    (r"get_adjusted_lr|adjust_lr_for_muon|p\.add_\(g, alpha",),
)


def main():
    import torch
    from pytorch_optimizer import Muon
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = Muon(model.parameters(), lr=1e-2)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
