"""Schedule-free AdamW multiplied its rate by the correction that belongs to the second moment."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("pytorch_optimizer==3.4.1", "pytorch_optimizer==3.4.2", (), ())
BUG = Bug(
    "https://github.com/kozistr/pytorch_optimizer/pull/354",
    (r".",),
    (r"bias_correction2",),
)


def main():
    import torch
    from pytorch_optimizer import ScheduleFreeAdamW
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = ScheduleFreeAdamW(model.parameters(), lr=1e-2, eps=1e-3)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
