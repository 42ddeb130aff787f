"""Where parameters differ at the start, compare says how, and what would repair it, from fingerprints or from elements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import numscope as ns


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.nn.functional.gelu(block(x))
        return x


def swap(net: Net) -> None:
    first, second = net.blocks[0].weight, net.blocks[1].weight
    held = first.clone()
    first.copy_(second)
    second.copy_(held)


def double(net: Net) -> None:
    net.blocks[1].weight.mul_(2)


def clear(net: Net) -> None:
    net.blocks[2].weight.zero_()


def transpose(net: Net) -> None:
    net.blocks[1].weight.copy_(net.blocks[1].weight.T.clone())


def run(path: Path, keep: str, change: Callable[[Net], None] | None = None) -> Path:
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        if change is not None:
            change(net)
    with ns.capture(path, net, keep=keep, backward=False) as capture:
        net(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
        capture.step()
    return path


@pytest.mark.parametrize(
    ("change", "keep", "fault", "says"),
    [
        (swap, "stats", "swapped", "swapped with blocks.1.weight"),
        (double, "stats", "scale", "2 times"),
        (clear, "stats", "zero", "all zero"),
        (swap, "tensors", "swapped", "swapped with blocks.1.weight"),
        (transpose, "tensors", "transposed", "transposed"),
    ],
)
def test_the_first_line_says_how_the_weights_differ(
    change: Callable[[Net], None], keep: str, fault: str, says: str, tmp_path: Path
) -> None:
    target, reference = run(tmp_path / "a", keep, change), run(tmp_path / "b", keep)
    origin = ns.compare(target, reference).origin
    assert origin.kind == "parameter"
    assert says in origin.reason
    assert origin.details["weights"]["fault"] == fault
    assert origin.repair


@pytest.mark.parametrize("keep", ["stats", "tensors"])
def test_diagnose_says_it_too_with_what_would_repair_it(keep: str, tmp_path: Path) -> None:
    origin = ns.diagnose(run(tmp_path / "a", keep, swap), run(tmp_path / "b", keep)).origin
    assert origin.kind == "parameter"
    assert "swapped with blocks.1.weight" in origin.reason
    assert origin.repair == "equal to the reference with blocks.0.weight in its place (now it holds blocks.1.weight)"
    assert origin.details["weights"]["fault"] == "swapped"
