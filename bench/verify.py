"""Measure the own error of healthy kernels: the limits that `verify` grants each operator, dtype and chip.

    python -m bench.verify limits                 # this machine's CPU
    python -m bench.verify limits --device cuda   # … or its GPU: rows of the chip are replaced in limits.csv
    python -m bench.verify cost --device cuda     # what verifying costs, of a step of a transformer

Every operator of `diagnose/accuracy` is called in every form and dtype, forward and backward, and each operator that this
dispatches is held against float64 as in a job that is captured with `verify=True`; so are products, norms, softmax and
attention of the sizes of models.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import numscope as ns
import numscope.capture.torch.verify as package
from numscope.capture.recording.recorder import Recorder
from numscope.capture.torch.verify.judging import CheckRow
from numscope.capture.torch.verify.precision import Machine
from numscope.capture.torch.verify.verifier import verifier
from numscope.capture.torch.watch import Watch
from numscope.core.settings import CaptureSettings
from numscope.diagnose.accuracy.cases import dtypes, operators
from numscope.diagnose.accuracy.data import Form
from numscope.diagnose.accuracy.samples import draw

LIMITS = Path(package.__file__).parent / "limits.csv"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Cell(NamedTuple):
    """A row of the table."""

    operator: str
    dtype: str
    chip: str


def verified(work: Callable[[], object]) -> list[CheckRow]:
    """Return the rows of what some work dispatches."""
    watch = Watch(Recorder(_nowhere, None, _nowhere), CaptureSettings(level="module", verify=True))
    mode = verifier(watch, True)
    watch.on = True
    with mode:
        work()
    found = watch.recorder.checks() if watch.recorder.checks is not None else {}
    return [CheckRow(*row) for row in zip(*found.values())]


def _nowhere(*_: object) -> Any:
    raise RuntimeError("nothing is written here")


def jobs(device: torch.device, numbers: int) -> Iterator[Callable[[], object]]:
    """Yield calls of every operator, and of some in the sizes of models."""
    for name in operators():
        for form in Form:
            for number in range(numbers):
                for dtype in dtypes(name) if name == "_scaled_mm" else _DTYPES:
                    yield lambda n=name, f=form, k=number, d=dtype: _call(n, f, k, d, device)
    for number in range(numbers):
        for dtype in _DTYPES:
            yield lambda k=number, d=dtype: _sizes(k, d, device)


def _call(name: str, form: Form, number: int, dtype: torch.dtype, device: torch.device) -> None:
    drawn, _ = draw(name, form, number)
    inputs = [x.to(dtype).to(device).requires_grad_(dtype.itemsize > 1) for x in drawn.inputs]
    _differentiate(drawn.function(*inputs), inputs)


def _differentiate(made: Any, inputs: list[torch.Tensor]) -> None:
    values = [x for x in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(x, torch.Tensor)]
    values = [x for x in values if x.requires_grad and x.dtype.is_floating_point]
    if values:
        torch.autograd.grad(values, inputs, [torch.randn_like(x) for x in values], allow_unused=True)


def _sizes(number: int, dtype: torch.dtype, device: torch.device) -> None:
    """Do what a step of a model does, in a size that is drawn."""
    chosen = random.Random(number)
    rows, width = chosen.choice((17, 128, 500)), chosen.choice((48, 256, 768))
    torch.manual_seed(number)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) * chosen.choice((0.02, 1.0, 5.0))).to(device, dtype).requires_grad_()

    x, w, b = drawn(rows, width), drawn(3 * width, width), drawn(3 * width)
    y = F.linear(x, w, b)
    _differentiate(F.gelu(y), [x, w, b])
    _differentiate(F.silu(y), [x])
    _differentiate(F.relu(y) @ torch.relu(w), [x, w])
    _differentiate(F.gelu(y, approximate="tanh"), [x])
    _differentiate(F.layer_norm(x, (width,), drawn(width), drawn(width)), [x])
    _differentiate(F.rms_norm(x, (width,), drawn(width)), [x])
    _differentiate(F.softmax(y, -1), [x])
    _differentiate(F.cross_entropy(y.float(), torch.arange(rows, device=device) % width), [x])
    for causal in (False, True):
        q, k, v = drawn(2, 2, rows, 32), drawn(2, 2, rows, 32), drawn(2, 2, rows, 32)
        _differentiate(F.scaled_dot_product_attention(q, k, v, is_causal=causal), [q, k, v])
    _differentiate(F.embedding(torch.arange(rows, device=device) % 11, w), [w])
    image, kernel = drawn(2, 8, 20, 20), drawn(16, 8, 3, 3)
    _differentiate(F.conv2d(image, kernel, stride=1 + number % 2, padding=number % 3), [image, kernel])
    _differentiate(F.batch_norm(image, None, None, drawn(8), drawn(8), training=True), [image])
    _differentiate(F.group_norm(image, 4, drawn(8), drawn(8)), [image])
    for fused in (False, True):
        for kind in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD):
            p = drawn(width, 7).detach().requires_grad_()
            options: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}
            stepper = kind([p], lr=1e-3, weight_decay=0.01, fused=fused, **options)
            for _ in range(3):
                p.grad = torch.randn_like(p)
                stepper.step()
    for foreach in (True,):
        p = drawn(width, 7).detach().requires_grad_()
        stepper = torch.optim.AdamW([p], lr=1e-3, foreach=foreach)
        for _ in range(3):
            p.grad = torch.randn_like(p)
            stepper.step()
    torch.nn.utils.clip_grad_norm_([p], 1.0)


def limits(device: torch.device, numbers: int) -> None:
    """Measure, and replace the rows of this device's chip."""
    chip = Machine().chip(str(device))
    worst: dict[Cell, list[float]] = {}
    failed: dict[str, int] = {}
    for job in jobs(device, numbers):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = verified(job)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            failed[str(error).splitlines()[0][:80]] = failed.get(str(error).splitlines()[0][:80], 0) + 1
            continue
        for row in rows:
            if row.verified == "none":
                failed[row.reason or ""] = failed.get(row.reason or "", 0) + 1
            elif row.units is not None and row.dtype is not None:
                worst.setdefault(Cell(row.operator, row.dtype, chip), []).append(row.units)
    table = {cell: (len(units), max(units)) for cell, units in worst.items()}
    head = f"# torch {torch.__version__}, {chip}, date 2026-11-19"
    heads = [head]
    if LIMITS.exists():
        lines = LIMITS.read_text().splitlines()
        heads = sorted({head, *(line for line in lines if line.startswith("#") and f", {chip}," not in line)})
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if row["chip"] != chip:
                table[Cell(row["operator"], row["dtype"], row["chip"])] = int(row["samples"]), float(row["worst"])
    lines = [*heads, "operator,dtype,chip,samples,worst"]
    lines += [f"{','.join(cell)},{count},{value:.3g}" for cell, (count, value) in sorted(table.items())]
    LIMITS.write_text("\n".join(lines) + "\n")
    for reason, count in sorted(failed.items(), key=lambda item: -item[1])[:60]:
        print(f"{count:6} {reason}")


def cost(device: torch.device, width: int, layers: int) -> None:
    """Print what verifying costs: a step of a transformer, forward, backward and optimizer, plain, captured, verified."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of a busy machine, the time of one thread is that of the work alone
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, "gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers).to(device)
    stepper = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(8, 128 if device.type == "cpu" else 2048, width, device=device)

    def step() -> None:
        stepper.zero_grad()
        model(x).square().mean().backward()
        stepper.step()

    plain = _seconds(step, device)
    with tempfile.TemporaryDirectory() as folder:
        for verify in (False, 0.01, True):
            with ns.capture(Path(folder) / str(verify), model, verify=verify) as cap:

                def captured(cap: Any = cap) -> None:
                    step()
                    cap.step()

                taken = _seconds(captured, device)
            print(f"verify={verify}: {taken / plain:.2f} x plain ({plain * 1e3:.0f} ms)", flush=True)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the least time of three: of a CPU its own, so that others on the machine do not count."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    taken = []
    for _ in range(4):
        began = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(clock() - began)
    return min(taken[1:])


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["limits", "cost"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--numbers", type=int, default=6)
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.job == "cost":
        cost(device, *((384, 2) if device.type == "cpu" else (4096, 6)))
    else:
        limits(device, args.numbers)


if __name__ == "__main__":
    main()
