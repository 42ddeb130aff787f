"""AdamG took one minus the bias correction twice."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("pytorch_optimizer==3.3.0", "pytorch_optimizer==3.3.1", (), ())
BUG = Bug(
    "https://github.com/kozistr/pytorch_optimizer/pull/308",
    (r".",),
    (r"bias_correction1: float = (1\.0 - )?self\.debias",),
)


def main():
    import torch
    from pytorch_optimizer import AdamG
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = AdamG(model.parameters(), lr=1e-2, p=0.5)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
