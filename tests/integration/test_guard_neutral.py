"""The guard changes nothing of the job, and leaves nothing behind."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import numscope as ns


def patched() -> tuple[Any, ...]:
    scaler = torch.amp.GradScaler
    zero_grad = torch.optim.Optimizer.zero_grad
    return nn.Module.__call__, torch.autograd.Function.apply, scaler.step, zero_grad, sys.excepthook, sys.exit


def test_everything_is_undone() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    before = patched()
    with ns.guard(nn.Linear(2, 2), record=None):
        pass
    with pytest.raises(ns.NonFiniteError), ns.guard(nn.Linear(2, 2), record=None):
        torch.log(torch.zeros(2))
    assert patched() == before
    assert signal.getsignal(signal.SIGTERM) == handler
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("level", ["mix", "module"])
@pytest.mark.parametrize("deferred", [False, True])
def test_training_is_the_same_to_the_bit_under_the_guard(deferred: bool, level: str) -> None:
    def trained(guarded: bool) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        guard = ns.guard(model, record=None, deferred=deferred, level=level)
        with guard if guarded else warnings.catch_warnings():
            for step in range(4):
                if step != 2:  # gradients of two steps are added up
                    optimizer.zero_grad(set_to_none=step == 1)
                loss = model(torch.randn(2, 5, 16)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, [parameter.detach() for parameter in model.parameters()]

    plain, watched = trained(False), trained(True)
    assert plain[0] == watched[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1]))
