"""Schedule-free AdamW put the bias correction into its rate, so that weights of the average changed with it."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("schedulefree==1.2.7", "schedulefree==1.3", (), ())
BUG = Bug(
    "https://github.com/facebookresearch/schedule_free/releases",
    (r".",),
    (r"bias_correction2",),
)


def main():
    import torch
    from schedulefree import AdamWScheduleFree
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = AdamWScheduleFree(model.parameters(), lr=1e-2, eps=1e-3)
    optimizer.train()
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
