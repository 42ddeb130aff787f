"""The spectrogram's window is symmetric where the model was trained with the periodic one."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Torch.hann_window"),), ("semantic",), step=0, repair=("periodic",))


def features(wave, periodic):
    window = torch.hann_window(16, periodic=periodic)  # origin
    spectrum = torch.stft(wave, 16, hop_length=4, window=window, return_complex=True)
    return spectrum.abs().square().clamp(min=1e-10).log10()


def main(variant):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(9, 12, 3, padding=1), nn.GELU(), nn.Conv1d(12, 12, 3, 2, 1), nn.GELU())
    head = nn.Linear(12, 3)
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=1e-3)
    values = []
    for _ in range(2):
        wave = torch.randn(3, 64).cumsum(1)
        loss = F.cross_entropy(head(net(features(wave, variant == "reference")).mean(-1)), torch.arange(3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
