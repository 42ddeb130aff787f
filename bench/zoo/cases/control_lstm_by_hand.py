"""An LSTM written as a loop over its gates against torch's own, with the same weights."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Loop(nn.LSTM):
    def forward(self, x):
        h = c = x.new_zeros(len(x), self.hidden_size)
        outputs = []
        for t in range(x.shape[1]):
            gates = F.linear(x[:, t], self.weight_ih_l0, self.bias_ih_l0)
            gates = gates + F.linear(h, self.weight_hh_l0, self.bias_hh_l0)
            i, f, g, o = gates.split(self.hidden_size, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, 1), (h[None], c[None])


class Forecast(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.rnn = cell(4, 12, batch_first=True)
        self.head = nn.Linear(12, 1)

    def forward(self, series):
        hidden, _ = self.rnn(series)
        return self.head(hidden).squeeze(-1)


def main(variant):
    torch.manual_seed(0)
    model = Forecast(Loop if variant == "target" else nn.LSTM)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    values = []
    for _ in range(2):
        series = torch.randn(3, 7, 4).cumsum(1)
        loss = F.huber_loss(model(series), series[..., 0].roll(-1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
