"""The pairs of the corpus: which job is held against which, and the right answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.devices.jobs import How, Job
from bench.devices.planted import EAGER_ONLY, FAULTS
from bench.devices.public import PUBLIC
from bench.zoo.truth import Truth

CPU, CUDA = How("cpu"), How("cuda")
CPU_LOW, CUDA_LOW = How("cpu", "bfloat16"), How("cuda", "bfloat16")
CUDA_EAGER, CUDA_LOW_EAGER = How(attention="eager"), How("cuda", "bfloat16", "eager")
CPU_EAGER, CPU_LOW_EAGER = How("cpu", attention="eager"), How("cpu", "bfloat16", "eager")
CUDA_AUTOCAST, CPU_AUTOCAST = How(autocast="bfloat16"), How("cpu", autocast="bfloat16")
CUDA_TF32 = How(tf32=True)

# Runs that differ for good reason: target, reference.
LEGITIMATE = {
    "device": (CUDA, CPU),
    "device, bfloat16": (CUDA_LOW, CPU_LOW),
    "device, autocast": (CUDA_AUTOCAST, CPU_AUTOCAST),
    "precision": (CUDA_LOW, CUDA),
    "autocast": (CUDA_AUTOCAST, CUDA),
    "attention": (CUDA, CUDA_EAGER),
    "attention, bfloat16": (CUDA_LOW, CUDA_LOW_EAGER),
    "device, precision and attention": (CUDA_LOW, CPU_EAGER),
}
# What a faulty target is held against: as above, one change at a time, and none.
HELD_AGAINST = {
    "same": (CUDA, CUDA),
    "same, bfloat16": (CUDA_LOW, CUDA_LOW),
    "device": (CUDA, CPU),
    "device, bfloat16": (CUDA_LOW, CPU_LOW),
    "precision": (CUDA_LOW, CUDA),
    "attention": (CUDA, CUDA_EAGER),
    "attention, bfloat16": (CUDA_LOW, CUDA_LOW_EAGER),
}
_OF_EAGER = {  # the faults that eager attention alone can have
    "same": (CUDA_EAGER, CUDA_EAGER),
    "same, bfloat16": (CUDA_LOW_EAGER, CUDA_LOW_EAGER),
    "device": (CUDA_EAGER, CPU_EAGER),
    "device, bfloat16": (CUDA_LOW_EAGER, CPU_LOW_EAGER),
    "precision": (CUDA_LOW_EAGER, CUDA_EAGER),
}
# float32 hides nothing of these that bfloat16 keeps: a cast where all is bfloat16 already, or none where nothing is.
_NO_FAULT = {
    "cast_order": ("same", "device", "attention"),
    "softmax_low": (),
}


@dataclass(frozen=True)
class Pair:
    """Two jobs and the right answer: a truth, or none where they only differ for good reason."""

    why: str
    target: Job
    reference: Job
    truth: Truth | None = None
    setting: str = ""  # the setting that the answer must name

    @property
    def name(self) -> str:
        """Return a name that stands for it in tables."""
        fault = f" {self.target.fault}" if self.target.fault else ""
        return f"{self.target.model}{fault}: {self.why}"


def pairs() -> Iterator[Pair]:
    """Yield all pairs of the corpus."""
    for model in (*PUBLIC, *FAULTS):
        for why, (target, reference) in LEGITIMATE.items():
            yield Pair(why, Job(model, target), Job(model, reference))
    for model in ("llama", "resnet", "rms"):
        yield Pair("tf32", Job(model, CUDA_TF32), Job(model, CUDA), setting="allow_tf32")
    for family, faults in FAULTS.items():
        for fault, truth in faults.items():
            held = _OF_EAGER if fault in EAGER_ONLY else HELD_AGAINST
            for why, (target, reference) in held.items():
                if why not in _NO_FAULT.get(fault, ()):
                    yield Pair(why, Job(family, target, fault), Job(family, reference), truth)


def jobs() -> list[Job]:
    """Return every job that a pair needs, once."""
    return list(dict.fromkeys(job for pair in pairs() for job in (pair.target, pair.reference)))
