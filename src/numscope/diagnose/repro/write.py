"""Writes one self-contained pytest file with the smallest recorded inputs that still show a fault.

The file needs torch and pytest alone. It holds the inputs, the target's calls, the reference's calls, forward or
backward, and a test that the two agree. It is run once before it is written: one that did not fail would prove nothing.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch

from numscope.compare.comparison import Comparison
from numscope.core.errors import NumscopeError
from numscope.core.report import Origin, Report
from numscope.diagnose.explain.suspect import groups, same_inputs
from numscope.diagnose.recorded.evidence import places_of
from numscope.diagnose.recorded.group import Group
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.pairing import pairing
from numscope.diagnose.recorded.step_graph import NotKept
from numscope.diagnose.replay.lift import lift
from numscope.diagnose.replay.measures import relative
from numscope.diagnose.repro.code import GRADIENTS, WRITTEN, code
from numscope.diagnose.repro.shrink import Inputs, smallest

MOST_BYTES = 4 << 20  # more than this does not belong in a source file

_PAGE = '''"""{title}

{reason}
{repair}
Written by numscope from {target} and {reference}.
The test fails as long as the target's calls don't give what the reference's calls give. Needs torch and pytest alone.
"""

import base64
import zlib

import torch


def tensor(dtype, shape, data):
    raw = bytearray(zlib.decompress(base64.b85decode(data)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)

{helpers}
def inputs():
    return {{
{inputs}    }}


def target({parameters}):
{target_code}

def reference({parameters}):
{reference_code}

def test_the_target_gives_what_the_reference_gives():
    made, wanted = target(**inputs()).double(), reference(**inputs()).double()
    assert made.shape == wanted.shape
    assert torch.equal(made.isfinite(), wanted.isfinite()), "one is finite where the other is not"
    made, wanted = (torch.where(x.isfinite(), x, 0.0) for x in (made, wanted))
    error = ((made - wanted).norm() / wanted.norm().clamp_min(1e-300)).item()
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
            text, size = _page(comparison, origin, target, reference, Inputs(shared, values), partners)
            if _fails(text):
                return text, size
            why = "replayed here, the two sides agree: the fault is the device's, or in what is not recorded"
        except (CannotReplay, NotKept) as error:
            why = str(error)
    raise NumscopeError(f"no repro of {origin.call} can be written: {why}")


def _fails(text: str) -> bool:
    """Tell whether the test of a page fails, as it should before the repair."""
    namespace: dict[str, object] = {"__name__": "repro"}
    exec(compile(text, "repro", "exec"), namespace)
    try:
        namespace["test_the_target_gives_what_the_reference_gives"]()  # type: ignore[operator]
    except AssertionError:
        return True
    except Exception as error:  # a call that Python's own form does not take
        raise CannotReplay(f"its calls can't be written as Python: {type(error).__name__}: {error}") from error
    return False


def _page(
    comparison: Comparison,
    origin: Origin,
    target: Group,
    reference: Group,
    start: Inputs,
    partners: Mapping[int, int],
) -> tuple[str, str]:
    limit = 8 * max(lift(target, reference, start.shared, start.values).floor, 1e-7)
    small = smallest(target, reference, start, limit)
    names: dict[tuple[str, int], str] = {}
    inputs: dict[str, torch.Tensor] = {}
    for number in target.inputs:
        name = f"x{len(inputs)}"
        names["target", number] = name
        inputs[name] = small.shared[number]
        partner = partners.get(number)
        if partner is not None and partner in small.values and _equal(small.values[partner], small.shared[number]):
            names["reference", partner] = name
    for number in reference.inputs:
        if ("reference", number) not in names:
            name = names["reference", number] = f"x{len(inputs)}"
            inputs[name] = small.values[number]
    size = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values())
    if size > MOST_BYTES:
        raise NumscopeError(f"the inputs of {origin.call} are {size >> 20} MiB: too much for a source file")
    target_code = code(target, {n: x for (side, n), x in names.items() if side == "target"}, small.target_edits)
    reference_code = code(
        reference, {n: x for (side, n), x in names.items() if side == "reference"}, small.reference_edits
    )
    text = _PAGE.format(
        title=f"{origin.call}: target and reference differ.",
        reason=origin.reason.replace("\\", "/").replace('"""', "'''"),
        repair=f"{origin.repair}.\n" if origin.repair else "",
        target=comparison.target.path,
        reference=comparison.reference.path,
        helpers=_helpers(target_code + reference_code),
        inputs="".join(f"        {name!r}: {_literal(tensor)},\n" for name, tensor in inputs.items()),
        parameters=", ".join(inputs),
        target_code=target_code,
        reference_code=reference_code,
        limit=limit,
    )
    shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in list(inputs.values())[:4])
    more = ", …" if len(inputs) > 4 else ""
    return text, f"{len(inputs)} input{'s' * (len(inputs) > 1)}, {size} bytes ({shapes}{more})"


def _helpers(body: str) -> str:
    return (GRADIENTS if "gradients(" in body else "") + (WRITTEN if "written(" in body else "") + "\n"


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and relative(a, b) == 0.0


def _literal(tensor: torch.Tensor) -> str:
    raw = tensor.contiguous()
    data = raw.view(torch.uint8).numpy().tobytes() if raw.dim() else raw.reshape(1).view(torch.uint8).numpy().tobytes()
    packed = base64.b85encode(zlib.compress(data, 9)).decode()
    return f"tensor({tensor.dtype}, {list(tensor.shape)}, {packed!r})"
