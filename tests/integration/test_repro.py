"""A repro stands on its own: torch and pytest alone, small inputs, fails before the repair and passes after it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.core.errors import NumscopeError
from numscope.diagnose.repro.write import repro

CLEAN = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numscope", "pyarrow", "rich", "safetensors", "ml_dtypes", "hypothesis"):
            raise ImportError(f"{name} is not installed in this environment")

sys.meta_path.insert(0, Blocked())
"""


class Net(nn.Module):
    def __init__(self, work: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embed, self.up, self.work = nn.Embedding(12, 16), nn.Linear(16, 24), work
        self.norm = nn.LayerNorm(24)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.work(self, tokens))


Work = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def embedded(padding: int | None) -> Work:
    return lambda m, x: m.up(F.embedding(x, m.embed.weight, padding_idx=padding))


def written(value: float) -> Work:
    def work(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        h = m.up(m.embed(x)) * 1.0
        h[..., :4] = value
        return h.mul_(2.0)

    return work


def autocast(approximate: str) -> Work:
    def work(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.gelu(m.up(m.embed(x)).float() * 4, approximate=approximate)

    return work


CASES: dict[str, tuple[Work, Work, str, tuple[str, str]]] = {  # target, reference, the origin, the repair as an edit
    "forward": (
        lambda m, x: F.gelu(m.up(m.embed(x)) * 3, approximate="tanh"),
        lambda m, x: F.gelu(m.up(m.embed(x)) * 3),
        r"Functional\.gelu\.0\.forward",
        ("approximate='tanh'", "approximate='none'"),
    ),
    "backward": (
        embedded(3),
        embedded(None),
        r"Functional\.embedding\.0\.backward",
        ("padding_idx=3", "padding_idx=None"),
    ),
    "sizes in arguments": (
        lambda m, x: F.layer_norm(m.up(m.embed(x)) * 1e-2, (24,), eps=1e-3),
        lambda m, x: F.layer_norm(m.up(m.embed(x)) * 1e-2, (24,), eps=1e-6),
        r"Functional\.layer_norm\.0\.forward",
        ("eps=0.001", "eps=1e-06"),
    ),
    "in place": (written(0.5), written(0.25), r"Tensor\.__setitem__\.0\.forward", (", 0.5)", ", 0.25)")),
    "autocast": (
        autocast("tanh"),
        autocast("none"),
        r"Functional\.gelu\.0\.forward",
        ("approximate='tanh'", "approximate='none'"),
    ),
}


def run(path: Path, work: Work) -> None:
    torch.manual_seed(0)
    model = Net(work)
    tokens = torch.randint(0, 12, (8, 10))
    with ns.capture(path, model, keep="tensors", on_error="raise"):
        model(tokens).float().square().sum().backward()


def outcome(folder: Path, text: str) -> tuple[int, str]:
    """Run a repro in an environment that has torch and pytest alone; return pytest's status and what it printed."""
    (folder / "conftest.py").write_text(CLEAN)
    (folder / "test_origin.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_origin.py"],
        cwd=folder,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", list(CASES))
def test_a_repro_fails_before_the_repair_and_passes_after_it(name: str, tmp_path: Path) -> None:
    target, reference, call, (now, then) = CASES[name]
    run(tmp_path / "target", target)
    run(tmp_path / "reference", reference)
    comparison = ns.compare(tmp_path / "target", tmp_path / "reference")
    origin = ns.diagnose(comparison).origin
    assert origin is not None
    assert re.fullmatch(call, origin.call), origin.call
    text, _ = repro(comparison, origin)
    status, printed = outcome(tmp_path, text)
    assert status == 1, printed
    assert "relative error" in printed
    head, body = text.split("def target(")
    mine, theirs = body.split("def reference(")
    assert now in mine, mine
    status, printed = outcome(tmp_path, f"{head}def target({mine.replace(now, then)}def reference({theirs}")
    assert status == 0, printed


@pytest.mark.parametrize(
    ("name", "most"),
    [("forward", 1), ("sizes in arguments", 24), ("autocast", 1), ("backward", 16 * 12 + 16 + 8)],
)
def test_the_inputs_are_the_smallest_that_still_show_it(name: str, most: int, tmp_path: Path) -> None:
    run(tmp_path / "target", CASES[name][0])
    run(tmp_path / "reference", CASES[name][1])
    comparison = ns.compare(tmp_path / "target", tmp_path / "reference")
    origin = ns.diagnose(comparison).origin
    assert origin is not None
    text, size = repro(comparison, origin)
    namespace: dict[str, object] = {}
    exec(text, namespace)
    inputs = namespace["inputs"]()  # type: ignore[operator]
    assert sum(tensor.numel() for tensor in inputs.values()) <= most, size


def test_what_would_not_fail_is_not_written(tmp_path: Path) -> None:
    class Hidden(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            self.head = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.from_numpy(x.detach().numpy() * self.factor))

    for side, factor in (("target", 3.0), ("reference", 2.0)):
        torch.manual_seed(0)
        model, x = Hidden(factor), torch.randn(5, 4)
        with ns.capture(tmp_path / side, model, keep="tensors"):
            model(x)
    comparison = ns.compare(tmp_path / "target", tmp_path / "reference")
    assert comparison.origin is not None
    with pytest.raises(NumscopeError, match=r"no repro of .* can be written"):
        repro(comparison, comparison.origin)
