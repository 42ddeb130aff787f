"""How a rank's parameters lie in the whole ones, as the job's libraries declare it: `RUN/rank0/layout.json`.

    {"format": "numscope.layout/1",
     "parameters": {"decoder.layers.0.mlp.linear_fc1.weight": {"dimension": 0, "ranks": [0, 1], "axis": "tp", "by": "megatron"},
                    "decoder.final_layernorm.weight": {"ranks": [0, 1], "axis": "tp", "by": "megatron"},
                    "blocks.0.up.weight": {"shape": [64, 32], "flat": [512, 1024], "ranks": [0, 1], "by": "fsdp"}}}

`dimension` is the one that is cut over the ranks; without it and without `flat` the parameter is the same on all of them.
`flat` are the elements, in row-major order, that this rank holds. What a DTensor declares stands with each tensor
(`placement` of the tensors table).
"""

from __future__ import annotations

from typing import TypedDict

FILE = "layout.json"
FORMAT = "numscope.layout/1"


class Placed(TypedDict, total=False):
    """How one parameter lies in the whole one."""

    dimension: int
    stride: int  # of how many tensors beside each other every rank has a part: query, key and value
    flat: list[int]
    shape: list[int]  # of the whole
    ranks: list[int]
    axis: str
    by: str  # megatron, ddp or fsdp


class Layout(TypedDict):
    """The whole file."""

    format: str
    parameters: dict[str, Placed]


def is_cut(placed: Placed) -> bool:
    """Tell whether each rank holds a part."""
    return "dimension" in placed or "flat" in placed


def plain(name: str) -> str:
    """Return a parameter's name without the modules that FullyShardedDataParallel puts around others."""
    return name.replace("_fsdp_wrapped_module.", "")
