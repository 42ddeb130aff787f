"""The averaged weights move by the decay instead of by what is left of it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Torch.lerp"), call("Tensor.(lerp|lerp_)")), ("semantic",), repair=("0.0?1",))


def main(variant):
    torch.manual_seed(0)
    rate = 0.9 if variant == "target" else 1 - 0.9

    def move(slow, fast, count):
        return slow.lerp(fast, rate)  # origin

    model = nn.Sequential(nn.Linear(5, 14), nn.Tanh(), nn.Linear(14, 2))
    average = AveragedModel(model, avg_fn=move)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
    for _ in range(3):
        x = torch.randn(12, 5)
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :2].sin()).backward()
        optimizer.step()
        average.update_parameters(model)
    with torch.no_grad():
        return average(torch.ones(1, 5)).flatten().tolist()


if __name__ == "__main__":
    run(main)
