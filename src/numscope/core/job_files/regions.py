"""The compiled regions of a run, seen inside: `RUN/rank0/regions.json` and the tensors in `RUN/rank0/regions/`.

Written by capture with `compiled="inside"`, read by diagnose. Nothing is pickled.

    {"format": "numscope.regions/1", "torch": "2.13.0",
     "graphs": [{"key": "cqdgk…", "frame": "0/0", "kind": "forward", "nodes": […], "buffers": {"buf1": "getitem_1"}}],
     "runs": [{"step": 0, "graph": "cqdgk…", "inputs": […], "after": {"primals_1": …}, "outputs": […],
               "buffers": [{"name": "buf1", "kernel": "cpp_fused_native_layer_norm_0", "tensor": …}]}],
     "lacks": ["0/0: compiled before the capture began"]}

An argument of a node is written as it is where JSON has it, else as an object whose one key is its kind: `node` (a name),
`dtype`, `device`, `layout`, `memory_format`, `float` ("nan", "inf", "-inf"), `slice`, `ellipsis`, `tuple`, `items` (of a
dict), `not` (the type of what has no plain form).
"""

from __future__ import annotations

from typing import TypedDict

from numscope.core.json_value import Json

FILE = "regions.json"
FOLDER = "regions"
FORMAT = "numscope.regions/1"


class Place(TypedDict):
    """A line of source."""

    file: str
    line: int
    function: str
    code: str


class NodeEntry(TypedDict):
    """A node of a graph."""

    name: str
    op: str  # as FX names it: placeholder, call_function, call_method, get_attr, output
    target: str
    args: Json
    kwargs: Json
    place: Place | None
    module: str
    original: str  # the operator that was decomposed
    origin: str  # the node of Dynamo's graph that it comes from
    dtype: str  # of its value, if that is a tensor
    shape: list[int] | None


class GraphEntry(TypedDict):
    """A graph that Inductor compiled, with what Dynamo had traced."""

    key: str
    frame: str  # Dynamo's number of the compiled frame
    kind: str  # forward, backward or inference
    nodes: list[NodeEntry]
    traced: list[NodeEntry]  # Dynamo's own graph; of the forward pass alone
    buffers: dict[str, str]  # of Inductor's buffers, the node whose value each has
    constants: dict[str, TensorEntry]


class TensorEntry(TypedDict):
    """Where a tensor is kept."""

    shard: str
    key: str
    dtype: str
    shape: list[int]


class BufferEntry(TypedDict):
    """A buffer as a kernel left it."""

    name: str
    kernel: str
    number: int  # of the kernel in the region's code
    tensor: TensorEntry


class RunEntry(TypedDict):
    """One run of a region."""

    step: int
    graph: str
    inputs: list[TensorEntry | int | float | bool | None]
    after: dict[str, TensorEntry]  # the inputs that the region wrote to, by the number of each
    outputs: list[TensorEntry | int | float | bool | None]
    buffers: list[BufferEntry]
    again: str  # "same": run again with a look at its buffers, it gave the same; or why there was no such look


class Regions(TypedDict):
    """The whole file."""

    format: str
    torch: str
    graphs: list[GraphEntry]
    runs: list[RunEntry]
    lacks: list[str]
