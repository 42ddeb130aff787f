"""AdEMAMix's cautious form masked the momentum itself."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("pytorch_optimizer==3.3.1", "pytorch_optimizer==3.3.2", (), ())
BUG = Bug(
    "https://github.com/kozistr/pytorch_optimizer/pull/312",
    (r".",),
    (r"apply_cautious|exp_avg\.clone\(\)|update\.add_\(exp_avg_slow",),
)


def main():
    import torch
    from pytorch_optimizer import AdEMAMix
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = AdEMAMix(model.parameters(), lr=1e-2, cautious=True)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
