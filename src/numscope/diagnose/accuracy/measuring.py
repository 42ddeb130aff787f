"""Measures the operators of a device: within a minute, enough samples of each for a table of its accuracy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from numscope.compare.judge.rounding.accuracy import Row
from numscope.diagnose.accuracy.cases import dtypes, operators
from numscope.diagnose.accuracy.data import Form
from numscope.diagnose.accuracy.devices import Way, chip, ways
from numscope.diagnose.accuracy.measured import columns_of, rows_of
from numscope.diagnose.accuracy.samples import Sample, accuracy

MOST_SAMPLES = 12  # of each form of inputs


class Taken(NamedTuple):
    """A sample, and the way in which the device computed it."""

    way: Way
    sample: Sample


def devices() -> list[torch.device]:
    """Return the devices of this machine: the CPU, and its accelerator where it has one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [torch.device("cpu"), *([found] if found is not None else [])]


def take(
    device: torch.device,
    until: float,
    failed: dict[str, str],
    only: Sequence[str] | None = None,
    samples: int = MOST_SAMPLES,
) -> Iterator[Taken]:
    """Yield samples of all operators, one of each before the next, until a time; what a device lacks is left out.

    `failed` gets why, by operator, dtype and way.
    """
    for number in range(samples):
        for name in operators() if only is None else only:
            for dtype in dtypes(name):
                key = str(dtype).removeprefix("torch.")
                for way in ways(device):
                    label = f"{name} {key} {way.name}"
                    if label in failed or not way.concerns(name, key):
                        continue
                    try:
                        with way.within():
                            for form in Form:
                                yield from (Taken(way, one) for one in accuracy(name, form, number, device, dtype))
                    except Exception as error:  # a device that lacks an operator, or a dtype of it
                        failed[label] = f"{type(error).__name__}: {error}"[:200]
            if time.perf_counter() > until:
                return


def measure(device: torch.device, seconds: float, only: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a device; TF32 is a setting of its own, and no rounding of float32."""
    end = time.perf_counter() + seconds
    taken = [one.sample for one in take(device, end, {}, only) if one.way.name != "tf32"]
    return list(rows_of(columns_of(taken, chip(device)))) if taken else []


def versions() -> str:
    """Return with what, and when, a table is measured."""
    cuda = f", cuda {torch.version.cuda}" if torch.version.cuda else ""
    return f"torch {torch.__version__}{cuda}, date {time.strftime('%Y-%m-%d')}"
