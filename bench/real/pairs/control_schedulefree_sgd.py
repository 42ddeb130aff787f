"""Schedule-free SGD with the state's copies made in another way."""

from bench.real.pair import Releases, run

RELEASES = Releases("schedulefree==1.2.7", "schedulefree==1.3", (), ())


def main():
    import torch
    from schedulefree import SGDScheduleFree
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = SGDScheduleFree(model.parameters(), lr=1e-2)
    optimizer.train()
    data, wanted = torch.randn(6, 16), torch.randn(6, 8)
    for _ in range(3):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
