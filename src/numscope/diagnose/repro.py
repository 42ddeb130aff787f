"""Writes one self-contained pytest file with the smallest recorded inputs that still show a fault.

The file needs torch and pytest alone. It holds the inputs, the target's calls, the reference's calls, and a test that
the two agree; it fails as long as they don't.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from numscope.compare.comparison import Comparison
from numscope.core.errors import NumscopeError
from numscope.core.report import Origin, Report
from numscope.diagnose.decode import CannotReplay, Given, Invocation
from numscope.diagnose.evidence import places_of
from numscope.diagnose.explain import groups, same_inputs
from numscope.diagnose.group import Group
from numscope.diagnose.measures import relative
from numscope.diagnose.pairing import pairing
from numscope.diagnose.recorded import NotKept

MOST_BYTES = 4 << 20  # more than this does not belong in a source file

Values = dict[int, torch.Tensor]

_HOMES = {
    "Functional": (("torch.nn.functional", torch.nn.functional), ("torch._C._nn", torch._C._nn)),
    "Torch": (
        ("torch", torch),
        ("torch.nn.init", torch.nn.init),
        ("torch._C._VariableFunctions", torch._C._VariableFunctions),
    ),
    "Tensor": (("torch.Tensor", torch.Tensor),),
    "Linalg": (("torch.linalg", torch.linalg),),
    "Fft": (("torch.fft", torch.fft),),
    "Special": (("torch.special", torch.special),),
    "VF": (("torch._C._VariableFunctions", torch._C._VariableFunctions),),
    "Aten": (("torch.ops.aten", torch.ops.aten),),
}

_PAGE = '''"""{title}

{reason}
{repair}
Written by numscope from {target} and {reference}.
The test fails as long as the target's calls don't give what the reference's calls give.
"""

import base64
import zlib

import torch


def tensor(dtype, shape, data):
    raw = bytearray(zlib.decompress(base64.b85decode(data)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)


INPUTS = {{
{inputs}}}


def target({parameters}):
{target_code}

def reference({parameters}):
{reference_code}

def test_the_target_gives_what_the_reference_gives():
    made, wanted = target(**INPUTS).double(), reference(**INPUTS).double()
    assert made.shape == wanted.shape
    error = ((made - wanted).norm() / wanted.norm()).item()
    assert error <= {limit:.3e}, f"relative error {{error:.3e}}, where rounding explains {limit:.1e}"
'''


def write_repro(comparison: Comparison, report: Report, path: str | Path) -> str:
    """Write the file and return what it holds in one line."""
    if report.origin is None:
        raise NumscopeError("there is nothing to reproduce: the two runs agree")
    text, size = repro(comparison, report.origin)
    Path(path).write_text(text, encoding="utf-8")
    return f"{path}: {size}; run it with pytest"


def repro(comparison: Comparison, origin: Origin) -> tuple[str, str]:
    """Return the file's text, and its inputs in words."""
    pairs = pairing(comparison, origin.step, origin.rank)
    why = "no tensor of this call differs between the two runs"
    for place in places_of(pairs, origin)[0]:
        try:
            target, reference = groups(pairs, place)
            if not target.calls and not reference.calls:
                why = "no recorded call made the tensor that differs"
                continue
            shared, values, partners, _ = same_inputs(pairs, target, reference)
            for number in target.inputs:
                shared.setdefault(number, target.record.data(number))
            for number in reference.inputs:
                values.setdefault(number, reference.record.data(number))
            return _page(comparison, origin, target, reference, shared, values, partners)
        except (CannotReplay, NotKept) as error:
            why = str(error)
    raise NumscopeError(f"no repro of {origin.call} can be written: {why}")


def _page(
    comparison: Comparison,
    origin: Origin,
    target: Group,
    reference: Group,
    shared: Values,
    values: Values,
    partners: Mapping[int, int],
) -> tuple[str, str]:
    from numscope.diagnose.lift import lift

    limit = 8 * max(lift(target, reference, shared, values).floor, 1e-7)
    shared, values = smallest(target, reference, shared, values, limit)
    names: dict[tuple[str, int], str] = {}
    inputs: dict[str, torch.Tensor] = {}
    for number in target.inputs:
        name = f"x{len(inputs)}"
        names["target", number] = name
        inputs[name] = shared[number]
        partner = partners.get(number)
        if partner is not None and partner in values and _equal(values[partner], shared[number]):
            names["reference", partner] = name
    for number in reference.inputs:
        if ("reference", number) not in names:
            name = names["reference", number] = f"x{len(inputs)}"
            inputs[name] = values[number]
    size = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values())
    if size > MOST_BYTES:
        raise NumscopeError(f"the inputs of {origin.call} are {size >> 20} MiB: too much for a source file")
    text = _PAGE.format(
        title=f"{origin.call}: target and reference differ.",
        reason=origin.reason.replace("\\", "/").replace('"""', "'''"),
        repair=f"{origin.repair}.\n" if origin.repair else "",
        target=comparison.target.path,
        reference=comparison.reference.path,
        inputs="".join(f"    {name!r}: {_literal(tensor)},\n" for name, tensor in inputs.items()),
        parameters=", ".join(inputs),
        target_code=_code(target, {n: name for (side, n), name in names.items() if side == "target"}),
        reference_code=_code(reference, {n: name for (side, n), name in names.items() if side == "reference"}),
        limit=limit,
    )
    shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in list(inputs.values())[:4])
    return text, f"{len(inputs)} input{'s' * (len(inputs) > 1)}, {size} bytes ({shapes})"


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and relative(a, b) == 0.0


def smallest(target: Group, reference: Group, shared: Values, values: Values, limit: float) -> tuple[Values, Values]:
    """Return the inputs cut down along their leading axis, as far as the two sides still differ."""
    rows = {tensor.shape[0] for tensor in (*shared.values(), *values.values()) if tensor.dim() > 1}
    for length in sorted(rows, reverse=True):
        for keep in (1, 2, 4, 8, 16):
            if keep >= length:
                break
            small_shared = {n: _cut(t, length, keep) for n, t in shared.items()}
            small_values = {n: _cut(t, length, keep) for n, t in values.items()}
            try:
                error = relative(target.run(small_shared), reference.run(small_values))
            except (CannotReplay, NotKept, RuntimeError):
                continue  # a recorded size does not fit the smaller inputs
            if error > 2 * limit:
                shared, values = small_shared, small_values
                break
    return shared, values


def _cut(tensor: torch.Tensor, length: int, keep: int) -> torch.Tensor:
    return tensor[:keep].clone() if tensor.dim() > 1 and tensor.shape[0] == length else tensor


def _literal(tensor: torch.Tensor) -> str:
    raw = tensor.contiguous()
    data = raw.view(torch.uint8).numpy().tobytes() if raw.dim() else raw.reshape(1).view(torch.uint8).numpy().tobytes()
    packed = base64.b85encode(zlib.compress(data, 9)).decode()
    return f"tensor({tensor.dtype}, {list(tensor.shape)}, {packed!r})"


def _code(group: Group, names: dict[int, str]) -> str:
    """Return a group's calls as Python."""
    lines: list[str] = []
    known = dict(names)
    for call, made in zip(group.calls, group.invocations().values()):
        if call.is_gradient:
            raise CannotReplay("a repro of a backward call is not written")
        lines.append(f"    r{call.order} = {_expression(made, known)}  # {call.name}")
        for slot, number in group.record.outputs(call.order).items():
            tail = slot.partition(".")[2]
            single = len(group.record.outputs(call.order)) == 1 and tail == "0"
            parts = [] if single else tail.split(".")
            known[number] = f"r{call.order}" + "".join(f"[{part}]" for part in parts)
    lines.append(f"    return {known[group.output]}")
    return "\n".join(lines) + "\n"


def _expression(made: Invocation, known: Mapping[int, str]) -> str:
    prefix, _, op = made.call.head.partition(".")
    args = [_value(value, known) for value in made.args]
    args += [f"{name}={_value(value, known)}" for name, value in made.kwargs.items()]
    for home, namespace in _HOMES.get(prefix, ()):
        if callable(getattr(namespace, op, None)):
            return f"{home}.{op}({', '.join(args)})"
    if prefix == "Tensor":  # an attribute, such as x.mT
        return f"{args[0]}.{op}"
    return f"torch.ops.{op}({', '.join(args)})"


def _value(value: Any, known: Mapping[int, str]) -> str:
    if isinstance(value, Given):
        return known[value.number]
    if isinstance(value, tuple):
        return "(" + "".join(f"{_value(item, known)}, " for item in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, known) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value(item, known)}" for key, item in value.items()) + "}"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and value != value:
        return "float('nan')"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f"float('{value}')"
    if value is Ellipsis:
        return "..."
    return repr(value)
