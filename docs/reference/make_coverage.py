"""Writes coverage.md: what capture sees of PyTorch at which level, found by running each case at each level.

python docs/reference/make_coverage.py            write docs/reference/coverage.md
python docs/reference/make_coverage.py --check    fail where it would change
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import numscope as ns

LEVELS = ("module", "api", "mix", "aten")
PAGE = Path(__file__).with_name("coverage.md")


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x * 2

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * 2


@torch.library.custom_op("docs::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


def _x() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()


def _train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(_x()).sum().backward()
    optimizer.step()


def _checkpoint(model: nn.Module, reentrant: bool) -> None:
    # Two layers: a recomputation ends as soon as it has what backward needs, in one layer before its call has ended.
    checkpoint(nn.Sequential(model, nn.Tanh()), _x(), use_reentrant=reentrant).sum().backward()


def _attention(model: nn.Module) -> None:
    attention = nn.MultiheadAttention(4, 2)
    h = _x().unsqueeze(0)
    attention(h, h, h, need_weights=False)[0].sum().backward()


def _compiled(model: nn.Module) -> None:
    torch.compile(model, backend="eager")(_x()).sum().backward()


Case = tuple[str, Callable[[nn.Module], object], tuple[str, ...]]  # what, how, calls that show it (any of them)
CASES: list[Case] = [
    ("module call: inputs, parameters, buffers, outputs", lambda m: m(_x()), ("Module.Linear.forward.0",)),
    ("module's gradients", _train, ("Module.Linear.backward.0",)),
    ("batch that enters the root module", lambda m: m(_x()), ("Data.Linear.0.input",)),
    ("optimizer step", _train, ("Optimizer.SGD.step.0",)),
    ("torch.nn.functional", lambda m: F.gelu(_x()), ("Functional.gelu.0.forward", "Aten.gelu.0.forward")),
    ("torch.*", lambda m: torch.exp(_x()), ("Torch.exp.0.forward", "Aten.exp.0.forward")),
    ("Tensor methods and operators", lambda m: _x() * 3, ("Tensor.mul.0.forward", "Aten.mul.0.forward")),
    ("torch.linalg", lambda m: torch.linalg.norm(_x()), ("Linalg.norm.0.forward", "Aten.linalg_vector_norm.0.forward")),
    ("torch.fft", lambda m: torch.fft.rfft(_x()), ("Fft.rfft.0.forward", "Aten._fft_r2c.0.forward")),
    (
        "torch.special",
        lambda m: torch.special.erf(_x()),
        ("Special.erf.0.forward", "Torch.erf.0.forward", "Aten.erf.0.forward"),
    ),
    (
        "torch.sparse",
        lambda m: torch.sparse.mm(torch.eye(3).to_sparse(), _x()),
        ("Sparse.mm.0.forward", "Aten._sparse_mm.0.forward", "Aten._sparse_addmm.0.forward"),
    ),
    ("torch.ops, custom operators", lambda m: twice(_x()), ("Ops.docs.twice.0.forward",)),
    ("autograd.Function", lambda m: Double.apply(_x()), ("Function.Double.0.forward",)),
    (
        "gradients of a call, in argument order",
        lambda m: F.linear(_x(), torch.ones(2, 4, requires_grad=True)).sum().backward(),
        ("Functional.linear.0.backward", "Aten.mm.0.backward"),
    ),
    (
        "inside of attention",
        _attention,
        (
            "Functional.scaled_dot_product_attention.0.forward",
            "Aten._scaled_dot_product_flash_attention_for_cpu.0.forward",
        ),
    ),
    ("checkpoint, reentrant: recomputation", lambda m: _checkpoint(m, True), ("recompute",)),
    ("checkpoint, not reentrant: recomputation", lambda m: _checkpoint(m, False), ("recompute",)),
    ("in-place operators", lambda m: torch.zeros(3).add_(1), ("Tensor.add_.0.forward", "Aten.add_.0.forward")),
    (
        "torch.func transforms",
        lambda m: torch.func.vmap(torch.sin)(_x()),
        ("Torch.sin.0.forward", "Aten.sin.0.forward"),
    ),
    ("torch.compile: the boundary", _compiled, ("Module.OptimizedModule.forward.0",)),
    ("torch.compile: the inside", _compiled, ("Functional.linear.0.forward", "Aten.addmm.0.forward")),
]


def seen(case: Case, level: str) -> bool:
    """Run a case at a level; tell whether one of its calls was recorded."""
    _, work, wanted = case
    torch._dynamo.reset()
    model = nn.Linear(4, 2)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ns.capture(Path(folder) / "run", model, level=level, on_error="raise") as cap:
            work(model)
            cap.step()
        if not (Path(folder) / "run").exists():
            return False
        rows = ns.open_run(Path(folder) / "run").calls.to_pylist()
    names = {row["name"] for row in rows} | ({"recompute"} if any(row["recompute"] for row in rows) else set())
    return bool(names & set(wanted))


NOTES = """
- **Collectives** (c10d, synchronous and asynchronous, and functional ones) are seen at every level; the result is as it
  is after `wait`.
  What DDP's reducer sends from C++ is not a Python call: its effect is in the optimizer's `parameters_grad`; level
  `aten` has what was given to it, and "not waited for" in place of the result.
- **torch.compile**: a compiled region runs exactly as it would without capture.
  Its boundary is recorded (the compiled module, and the compiled autograd function), its inside is not; the run counts
  each region under "compiled region: its inside is not seen".
  [`--compiled inside`](../howto/compiled.md) keeps its graph, and what its kernels leave in chosen steps.
  To look inside, run the same job eagerly (`TORCH_COMPILE_DISABLE=1`) and compare the two runs.
- **Optimizers** are one call each: parameters and gradients before, parameters after, hyperparameters as arguments.
  Their inside is seen at level `aten`.
  The optimizer's state is measured at the first step that is recorded of it.
- **torch.func, nested, sparse and meta tensors, tensor subclasses**: the call is recorded; a tensor that has no plain
  data has a note in its place, and is counted in the run's `skipped` by reason.
- **DTensor**: the local shard, with global shape, mesh, coordinate and placements in the column `placement`.
- **Other threads** are seen from their outermost module call on.
- **Memory written by kernels that torch does not know of** (through `data_ptr()`, `.data`, numpy) is measured anew each
  time.
"""


def page() -> str:
    """Return the page."""
    lines = [
        "# What is seen",
        "",
        "Made by `docs/reference/make_coverage.py`, which runs each case at each level and looks for its call.",
        "✓ is seen, – is not.",
        "",
        "| case | " + " | ".join(f"`{level}`" for level in LEVELS) + " |",
        "|---|" + "---|" * len(LEVELS),
    ]
    for case in CASES:
        marks = ["✓" if seen(case, level) else "–" for level in LEVELS]
        lines.append(f"| {case[0]} | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n" + NOTES


def main() -> int:
    """Write the page, or check it."""
    torch.set_num_threads(1)
    text = page()
    if "--check" in sys.argv:
        if PAGE.read_text(encoding="utf-8") != text:
            print("docs/reference/coverage.md is not what capture sees now: run docs/reference/make_coverage.py")
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
