"""Lion's averages as products and sums, and not as lerp."""

from bench.real.pair import Releases, run

RELEASES = Releases("lion-pytorch==0.0.6", "lion-pytorch==0.0.7", (), ())


def main():
    import torch
    from lion_pytorch import Lion
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = Lion(model.parameters(), lr=1e-2)
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
