"""Writes one self-contained pytest file with the smallest recorded inputs that still show a fault.

The file needs torch and pytest alone. It holds the inputs, the target's calls, the reference's calls, forward or
backward, and a test that the two agree. The test is run before the file is written, and must fail.
"""

from __future__ import annotations

from pathlib import Path

import torch

from numscope.compare.comparison import Comparison
from numscope.core.errors import NotKeptError, NumscopeError
from numscope.core.report import Origin, Report
from numscope.diagnose.explain.device import faulty_call
from numscope.diagnose.recorded.differing_tensors import differing_tensors
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import pair_step
from numscope.diagnose.recorded.shared_inputs import SharedInputs, shared_inputs, subgraphs_of
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.lift import lift
from numscope.diagnose.replay.measures import relative_error
from numscope.diagnose.repro import device_page
from numscope.diagnose.repro.minify import Inputs, minify
from numscope.diagnose.repro.python_source import GRADIENTS, WRITTEN, source_of
from numscope.diagnose.repro.values import MOST_BYTES, TENSOR, literal, size_words

_PAGE = '''"""{title}

{reason}
{repair}
Written by numscope from {target} and {reference}.
The test fails as long as the target's calls don't give what the reference's calls give. Needs torch and pytest alone.
"""

import base64
import zlib

import torch


{load}
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
    """Write the file and return its content in one line of words."""
    if report.origin is None:
        raise NumscopeError("there is nothing to reproduce: the two runs agree")
    if report.origin.mechanism == "device":
        return _write_of_device(comparison, report.origin, Path(path))
    text, size = repro(comparison, report.origin)
    Path(path).write_text(text, encoding="utf-8")
    return f"{path}: {size}; run it with pytest"


def _write_of_device(comparison: Comparison, origin: Origin, path: Path) -> str:
    """Write the file for a fault of a device: it can't be shown here, and so not be made smaller."""
    pairs = pair_step(comparison, origin.step, origin.rank)
    why = "the call at fault was not found again"
    for tensor in differing_tensors(pairs, origin):
        try:
            target, reference = subgraphs_of(pairs, tensor)
            shared = shared_inputs(pairs, target, reference)
            figures = lift(target, reference, shared.target, shared.reference)
            if figures.mechanism() == "device":
                return device_page.write(faulty_call(target, reference, figures), path)
        except (CannotReplay, NotKeptError) as error:
            why = str(error)
    raise NumscopeError(f"no repro of {origin.call} can be written: {why}")


def repro(comparison: Comparison, origin: Origin) -> tuple[str, str]:
    """Return the file's text, and its inputs in words."""
    pairs = pair_step(comparison, origin.step, origin.rank)
    why = "no tensor of this call differs between the two runs"
    for tensor in differing_tensors(pairs, origin):
        try:
            target, reference = subgraphs_of(pairs, tensor)
            if not target.calls and not reference.calls:
                why = "no recorded call made the tensor that differs"
                continue
            shared = shared_inputs(pairs, target, reference)
            for number in target.inputs:
                shared.target.setdefault(number, target.graph.data(number))
            for number in reference.inputs:
                shared.reference.setdefault(number, reference.graph.data(number))
            text, size = _page(comparison, origin, target, reference, shared)
            if _fails(text):
                return text, size
            why = "replayed here, the two sides agree: the fault is the device's, or in what is not recorded"
        except (CannotReplay, NotKeptError) as error:
            why = str(error)
    raise NumscopeError(f"no repro of {origin.call} can be written: {why}")


def _fails(text: str) -> bool:
    """Tell whether the test of a repro fails, as it must before the repair."""
    namespace: dict[str, object] = {"__name__": "repro"}
    exec(compile(text, "repro", "exec"), namespace)
    try:
        namespace["test_the_target_gives_what_the_reference_gives"]()  # type: ignore[operator]
    except AssertionError:
        return True
    except Exception as error:  # raised by a generated call: the Python source does not express it
        raise CannotReplay(f"its calls can't be written as Python: {type(error).__name__}: {error}") from error
    return False


def _page(
    comparison: Comparison,
    origin: Origin,
    target: Subgraph,
    reference: Subgraph,
    shared: SharedInputs,
) -> tuple[str, str]:
    """Return the text of the file for one tensor, and its inputs in words."""
    limit = 8 * max(lift(target, reference, shared.target, shared.reference).floor, 1e-7)
    small = minify(target, reference, Inputs(shared.target, shared.reference), limit)
    target_names: dict[int, str] = {}
    reference_names: dict[int, str] = {}
    inputs: dict[str, torch.Tensor] = {}
    for number in target.inputs:
        name = target_names[number] = f"x{len(inputs)}"
        inputs[name] = small.target[number]
        partner = shared.counterpart.get(number)
        other = small.reference.get(partner) if partner is not None else None
        if partner is not None and other is not None and _equal(other, inputs[name]):
            reference_names[partner] = name
    for number in reference.inputs:
        if number not in reference_names:
            name = reference_names[number] = f"x{len(inputs)}"
            inputs[name] = small.reference[number]
    size = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values())
    if size > MOST_BYTES:
        raise NumscopeError(f"the inputs of {origin.call} are {size >> 20} MiB: too much for a source file")
    target_code = source_of(target, target_names, small.target_edits)
    reference_code = source_of(reference, reference_names, small.reference_edits)
    text = _PAGE.format(
        title=f"{origin.call}: target and reference differ.",
        reason=origin.reason.replace("\\", "/").replace('"""', "'''"),
        repair=f"{origin.repair}.\n" if origin.repair else "",
        target=comparison.target.path,
        reference=comparison.reference.path,
        load=TENSOR,
        helpers=_helpers(target_code + reference_code),
        inputs="".join(f"        {name!r}: {literal(tensor)},\n" for name, tensor in inputs.items()),
        parameters=", ".join(inputs),
        target_code=target_code,
        reference_code=reference_code,
        limit=limit,
    )
    return text, size_words(inputs)


def _helpers(body: str) -> str:
    return (GRADIENTS if "gradients(" in body else "") + (WRITTEN if "written(" in body else "") + "\n"


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and relative_error(a, b) == 0.0
