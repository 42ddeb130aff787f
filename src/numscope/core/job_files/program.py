"""The program of a run, as far as its calls are concerned: `RUN/rank0/program.json`, written by capture, read by compare.

    {"format": "numscope.program/1",
     "modules": {"blocks.0.norm": {"class_name": "model:RMSNorm", "values": {"eps": 1e-06}, "objects": {"config": 0}}},
     "objects": [{"class_name": "config:Config", "values": {"norm_eps": 1e-06}}],
     "optimizers": ["model:Own"],
     "optimizer_values": {"Own": {"decoupled": true}},
     "sources": [{"file": "/job/model.py", "line": 12, "text": "class RMSNorm(nn.Module):\\n …"}],
     "packages": {"transformers": "4.36.2"}}

Values are numbers, flags, short texts, and lists and dicts of them, so that a number that a call is given can be
followed to the attribute, the constructor and the configuration that it came from.
"""

from __future__ import annotations

from typing import TypedDict

FILE = "program.json"
FORMAT = "numscope.program/1"

Value = bool | int | float | str | None | list["Value"] | dict[str, "Value"]


class ObjectValues(TypedDict):
    """The plain attributes of a configuration object."""

    class_name: str
    values: dict[str, Value]


class ModuleValues(TypedDict):
    """The plain attributes of a module, and which configuration objects it holds."""

    class_name: str
    values: dict[str, Value]
    objects: dict[str, int]


class SourceText(TypedDict):
    """A definition in a source file: its first line's number and its text."""

    file: str
    line: int
    text: str


class Program(TypedDict):
    """The whole file."""

    format: str
    modules: dict[str, ModuleValues]
    objects: list[ObjectValues]
    optimizers: list[str]
    optimizer_values: dict[str, dict[str, Value]]  # plain attributes of optimizers that are not torch's, by class
    sources: list[SourceText]
    packages: dict[str, str]
