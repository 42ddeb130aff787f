"""Our hooks on autograd nodes have no handles; everybody else's are as they always are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import numscope as ns

torch = pytest.importorskip("torch")


def registering() -> Any:
    from torch.autograd import function

    return vars(function._HookMixin)["_register_hook"]


def test_torch_registers_hooks_as_before_when_capture_has_stopped(tmp_path: Path) -> None:
    before = registering()
    with ns.capture(tmp_path / "run", torch.nn.Linear(2, 2)):
        assert registering() is not before
    assert registering() is before


class Hooked(torch.nn.Module):
    """Hooks the node of its own result."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.handles: list[Any] = []

    def forward(self, x: Any) -> Any:
        y = x * 2
        for name in ("kept", "gone"):
            self.handles.append(y.grad_fn.register_hook(lambda *_, name=name: self.seen.append(name)))
        return y


# At level module our hook comes when the module has returned, at level mix right after the multiplication.
@pytest.mark.parametrize("level", ["module", "mix"])
def test_a_hook_of_the_users_on_the_same_node_runs_and_can_be_removed(tmp_path: Path, level: str) -> None:
    leaf = torch.ones(3, requires_grad=True)
    model = Hooked()
    with ns.capture(tmp_path / "run", model, level=level):
        y = model(leaf)
        model.handles[1].remove()
        y.sum().backward()
    assert model.seen == ["kept"]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 2.0, 2.0]
    names = set(ns.open_run(tmp_path / "run").tensors.column("name").to_pylist())
    assert {"Module.Hooked.backward.0.input.0", "Module.Hooked.backward.0.output.0"} <= names
