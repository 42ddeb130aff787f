"""With two micro-batches a step, the schedule is stepped after each of them: the rate falls twice as fast."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, optimizer

ORIGIN = Truth((optimizer("SGD"),), ("semantic",), step=0, repair=("lr=",))


def main(variant):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=20)
    data = torch.randn(8, 16, 10)
    values = []
    for number, x in enumerate(data):
        loss = (net(x).squeeze(-1) - x.sin().sum(-1)).pow(2).mean() / 2
        loss.backward()
        if number % 2 == 1:
            sgd.step()
            sgd.zero_grad()
        if variant == "target" or number % 2 == 1:
            schedule.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
