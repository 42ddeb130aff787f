"""The recurrent state of the last batch goes into the next one, though its sequences are others."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing, module

ORIGIN = Truth(
    (
        module("lstm", "LSTM"),
        Answer(r"Torch\.lstm\.\d+\.forward", marker=None),
        Answer(r"Module\.(lstm\.)?(Recogniser|LSTM)\.forward\.\d+", marker=None),
        # nn.LSTM makes its own zeros where no state is given.
        Answer(r"Torch\.zeros\.\d+\.forward", ("missing",), "lstm", marker=None),
        missing("Torch.zeros", marker=None),
    ),
    ("input", "semantic"),
    step=1,
    repair=(r"missing: Torch\.zeros",),
)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 10, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(20, 4)

    def forward(self, frames, state=None):
        h, state = self.lstm(frames, state)
        return self.out(h), state


def main(variant):
    torch.manual_seed(0)
    model = Recogniser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    state, values = None, []
    for _ in range(3):
        frames, labels = torch.randn(3, 6, 5), torch.randint(4, (3, 6))
        if variant == "target" and state is not None:
            state = tuple(part.detach() for part in state)
        else:
            state = None
        logits, state = model(frames, state=state)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
