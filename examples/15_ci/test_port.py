"""A test of your project: the rewritten layer does what the old one did, in forward and in backward."""

import torch
from torch import nn

import numscope as ns
from numscope.testing import assert_equivalent


class Old(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class New(Old):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.addmm(self.up.bias, x, self.up.weight.t())
        return self.down(hidden.clamp(min=0))


def run(path, model: nn.Module) -> None:
    torch.manual_seed(1)
    with ns.capture(path, model):
        model(torch.randn(4, 8)).square().mean().backward()


def test_the_new_layer_does_what_the_old_one_did(tmp_path) -> None:
    torch.manual_seed(0)
    old, new = Old(), New()
    new.load_state_dict(old.state_dict())
    run(tmp_path / "old", old)
    run(tmp_path / "new", new)
    assert_equivalent(tmp_path / "new", tmp_path / "old")
