"""AdaBelief was rectified by default."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("pytorch_optimizer==2.11.1", "pytorch_optimizer==2.11.2", (), ())
BUG = Bug(
    "https://github.com/kozistr/pytorch_optimizer/pull/196",
    (r".",),
    (r"rectify",),
)


def main():
    import torch
    from pytorch_optimizer import AdaBelief
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = AdaBelief(model.parameters(), lr=1e-2)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
