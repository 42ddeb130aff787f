"""A pytest file for the maker of a device: the recorded inputs, the call, and what it must give; no model.

DEVICE=cuda:0 pytest test_origin.py
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch

from numscope.core.errors import NumscopeError
from numscope.diagnose.explain.device import FaultyCall
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.measures import to_double
from numscope.diagnose.repro.python_source import GRADIENTS, WRITTEN, source_of
from numscope.diagnose.repro.values import LOAD, MOST_BYTES, TENSOR, literal, size_words

_TIMES_OPERATOR = 8.0  # the operator's own error, as in own_error.py

_PAGE = '''"""{title}

The call is made again on a device from its recorded inputs, and must give what float64 gives.
{elements}
Made by {made_by}.
Written by numscope from {run}. Needs torch and pytest alone: DEVICE={device} pytest {name}
"""

import base64
import os
import zlib
from pathlib import Path

import pytest
import torch

DEVICE = os.environ.get("DEVICE", "{device}")


{load}
{helpers}
def values():
    """Return the recorded inputs, `expected` from float64, and `recorded`, which the device gave then."""
{values}


def call({parameters}):
{code}

def test_the_device_gives_what_float64_gives():
    given = values()
    expected, recorded = given.pop("expected"), given.pop("recorded")
    try:
        given = {{name: tensor.to(DEVICE) for name, tensor in given.items()}}
    except (RuntimeError, AssertionError) as error:
        pytest.skip(f"there is no {{DEVICE}} here: {{error}}")
    made = call(**given).cpu()
    assert made.shape == expected.shape
    again = "the same numbers as were recorded" if torch.equal(made, recorded) else "other numbers than were recorded"
    assert torch.equal(made.isfinite(), expected.isfinite()), f"one is finite where the other is not; {{again}}"
    made, expected = (torch.where(x.isfinite(), x, 0.0) for x in (made.double(), expected))
    error = {error}
    assert error <= {limit:.3e}, f"{words} {{error:.3e}}, where the operator has {operator:.1e}; {{again}}"
'''


class _Measure(NamedTuple):
    """A measure by which the recorded output is wrong, and the operator's own is right."""

    words: str
    source: str
    operator: float
    recorded: float


def write(fault: FaultyCall, path: Path) -> str:
    """Write the file, and one of data beside it where the tensors are too large for source; return what it holds."""
    side = fault.replay
    if not isinstance(side, Subgraph):
        raise CannotReplay("the call at fault is a module: capture its calls too, with level mix")
    names = {number: f"x{index}" for index, number in enumerate(side.inputs)}
    tensors = {names[number]: side.graph.data(number) for number in side.inputs}
    tensors |= {"expected": to_double(fault.own.exact), "recorded": fault.own.recorded}
    code = source_of(side, names, {})
    measure = _separating(side.run({}), fault)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    data = path.with_suffix(".pt")
    is_small = size <= MOST_BYTES
    device = fault.own.device or "cpu"
    text = _PAGE.format(
        title=f"{fault.name} is off by {fault.own.relative:.1e} on {device}; the operator's own error is "
        f"{fault.own.replayed:.1e}.",
        elements=f"Elements that are off: {fault.elements}.",
        made_by=fault.made_by or "an unknown library",
        run=side.graph.run.path,
        device=device,
        name=path.name,
        load=TENSOR if is_small else LOAD.format(name=data.name),
        helpers=(GRADIENTS if "gradients(" in code else "") + (WRITTEN if "written(" in code else "") + "\n",
        values=_literals(tensors) if is_small else "    return load()",
        parameters=", ".join(names.values()),
        code=code.replace('torch.autocast("cpu"', 'torch.autocast(DEVICE.partition(":")[0]'),
        error=measure.source,
        words=measure.words,
        operator=measure.operator,
        limit=_limit(measure),
    )
    _check(text, tensors, path)
    path.write_text(text, encoding="utf-8")
    if not is_small:
        torch.save({name: tensor.clone() for name, tensor in tensors.items()}, data)
    where = f"{path}" if is_small else f"{path} and {data}"
    return (
        f"{where}: {size_words({name: tensors[name] for name in names.values()})}; run it with DEVICE={device} pytest"
    )


def _separating(made: torch.Tensor, fault: FaultyCall) -> _Measure:
    """Return a measure by which the recorded output is clearly worse than the operator made here."""
    exact = to_double(fault.own.exact)
    if made.shape != exact.shape or fault.own.recorded.shape != exact.shape:
        return _Measure("error", "0.0", 0.0, math.inf)  # the shape is asserted before
    found = []
    for words, source, measure in (
        ("relative error", "((made - expected).norm() / expected.norm().clamp_min(1e-300)).item()", _norm),
        ("largest error", "(made - expected).abs().max().item()", _largest),
    ):
        found.append(_Measure(words, source, measure(made, exact), measure(fault.own.recorded, exact)))
    clear = [item for item in found if item.recorded > _TIMES_OPERATOR * item.operator]
    if not clear:
        raise CannotReplay("the recorded output is not clearly worse than the call made here")
    return clear[0]


def _limit(measure: _Measure) -> float:
    """Return the error midway, on a logarithmic scale, between the operator's own and the recorded one."""
    if math.isinf(measure.recorded):
        return max(_TIMES_OPERATOR * measure.operator, 1e-300)
    return math.sqrt((measure.operator or 1e-6 * measure.recorded) * measure.recorded)


def _norm(made: torch.Tensor, exact: torch.Tensor) -> float:
    a, b = _finite(made, exact)
    return float((a - b).norm() / b.norm().clamp_min(1e-300)) if _same_kind(made, exact) else math.inf


def _largest(made: torch.Tensor, exact: torch.Tensor) -> float:
    a, b = _finite(made, exact)
    return float((a - b).abs().max()) if _same_kind(made, exact) and a.numel() else math.inf


def _same_kind(made: torch.Tensor, exact: torch.Tensor) -> bool:
    return torch.equal(made.isfinite(), exact.isfinite())


def _finite(made: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = to_double(made), to_double(exact)
    return torch.where(a.isfinite(), a, 0.0), torch.where(b.isfinite(), b, 0.0)


def _literals(tensors: dict[str, torch.Tensor]) -> str:
    lines = [f"        {name!r}: {literal(tensor)},\n" for name, tensor in tensors.items()]
    return "    return {\n" + "".join(lines) + "    }"


def _check(text: str, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Raise unless the file's call can be made here, on the CPU."""
    namespace: dict[str, object] = {"__name__": "repro", "__file__": str(path)}
    exec(compile(text, "repro", "exec"), namespace)
    given = {name: tensor for name, tensor in tensors.items() if name not in ("expected", "recorded")}
    try:
        namespace["DEVICE"] = "cpu"
        namespace["call"](**given)  # type: ignore[operator]
    except Exception as error:  # raised by a generated call: the Python source does not express it
        raise NumscopeError(f"the call can't be written as Python: {type(error).__name__}: {error}") from error
