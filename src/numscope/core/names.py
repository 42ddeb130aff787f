"""Names of calls and slots, as msprobe's users know them.

    Functional.linear.5.forward        Module.blocks.0.mlp.Linear.forward.0
    Torch.exp.0.backward               Optimizer.AdamW.step.0
    Distributed.all_reduce.0.forward   Save.logits.0.forward
    Aten.mm.3.forward                  Data.batch.0.input

A tensor's name is its call's name, a dot, and its slot: `Functional.linear.5.forward.input.0`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FLAT = re.compile(r"^(?P<prefix>[A-Z]\w*)\.(?P<op>.+)\.(?P<index>\d+)\.(?P<phase>forward|backward|input)$")
_MODULE = re.compile(r"^(?P<prefix>Module|Optimizer)\.(?P<path>.+)\.(?P<phase>forward|backward|step)\.(?P<index>\d+)$")
_SLOT = re.compile(r"\.(?P<slot>(?:input|output|kwargs|parameters_grad|parameters|buffers|state)(?:\.[^\s]+)?)$")


@dataclass(frozen=True)
class CallName:
    """A call's name, taken apart."""

    prefix: str
    op: str  # the API's name, the optimizer's class, or the module's class
    path: str  # the module path; empty unless prefix is Module
    phase: str
    index: int

    def __str__(self) -> str:
        if self.prefix == "Module":
            path = f"{self.path}." if self.path else ""
            return f"Module.{path}{self.op}.{self.phase}.{self.index}"
        if self.prefix == "Optimizer":
            return f"Optimizer.{self.op}.{self.phase}.{self.index}"
        return f"{self.prefix}.{self.op}.{self.index}.{self.phase}"


def parse_call(name: str) -> CallName | None:
    """Return the parts of a call's name, or None where it has another form."""
    if match := _MODULE.match(name):
        path, _, op = match["path"].rpartition(".")
        return CallName(match["prefix"], op, path, match["phase"], int(match["index"]))
    if match := _FLAT.match(name):
        return CallName(match["prefix"], match["op"], "", match["phase"], int(match["index"]))
    return None


def split_tensor(name: str) -> tuple[str, str] | None:
    """Return (call, slot) of a tensor's name, or None where it has no slot."""
    for match in re.finditer(r"\.(?:forward|backward|step|input)(?:\.\d+)?(?=\.)", name):
        head, tail = name[: match.end()], name[match.end() :]
        if parse_call(head) and (slot := _SLOT.match(tail)):
            return head, slot["slot"]
    return None


def label_of(slot: str) -> str:
    """Return the label of a slot: `weight` of `parameters.weight`, `0` of `input.0`."""
    _, _, label = slot.partition(".")
    return label


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Return a key by which texts sort with the numbers in them as numbers: step2 before step10."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]
