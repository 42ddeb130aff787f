"""The compiled regions of a run, read: graphs and runs, with their tensors as torch has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from numscope.core.errors import RunError
from numscope.core.job_files.regions import FILE, FOLDER, FORMAT, GraphEntry, Regions, RunEntry, TensorEntry
from numscope.diagnose.recorded.step_graph import to_torch
from numscope.diagnose.regions.graph import Graph
from numscope.store.reader import Run
from numscope.store.rundir import read_document
from numscope.store.shards import Shard


class Region:
    """One run of one compiled graph."""

    def __init__(self, regions: RecordedRegions, graph: GraphEntry, run: RunEntry) -> None:
        self.entry, self.run = graph, run
        self.graph, self.traced = Graph(graph["nodes"]), Graph(graph["traced"])
        self.inputs = {
            name: regions.value(value) for name, value in zip(self.graph.placeholders, run["inputs"], strict=False)
        }
        self.inputs |= {name: regions.value(value) for name, value in graph["constants"].items()}
        self.outputs = [regions.value(value) for value in run["outputs"]]
        self.after = {
            self.graph.placeholders[int(number)]: regions.value(value) for number, value in run["after"].items()
        }

    @property
    def name(self) -> str:
        """Return the region's name for people."""
        return f"{self.entry['frame']} {self.entry['kind']}"


class RecordedRegions:
    """The file of a rank, and its tensors."""

    def __init__(self, run: Run, rank: int) -> None:
        self._folder = Path(run.path) / f"rank{rank}"
        self._shards: dict[str, Shard] = {}
        document = read_document(self._folder, FILE)
        if document is None:
            self.found: Regions | None = None
            return
        if document.get("format") != FORMAT:
            raise RunError(
                f"{self._folder / FILE} has the format {document.get('format')!r}: this numscope reads {FORMAT}"
            )
        self.found = cast(Regions, document)

    def regions(self) -> list[Region]:
        """Return the recorded runs of regions, in the order in which they ran."""
        if self.found is None:
            return []
        graphs = {graph["key"]: graph for graph in self.found["graphs"]}
        return [Region(self, graphs[run["graph"]], run) for run in self.found["runs"] if run["graph"] in graphs]

    def buffers(self, region: Region) -> list[tuple[int, str, str, torch.Tensor]]:
        """Return what each kernel left: its number, its name, the node whose value it is, and the tensor."""
        nodes = region.entry["buffers"]
        return [
            (one["number"], one["kernel"], nodes[one["name"]], self.value(one["tensor"]))
            for one in region.run["buffers"]
            if one["name"] in nodes
        ]

    def value(self, entry: TensorEntry | int | float | bool | None) -> Any:
        """Return a value as it was."""
        if not isinstance(entry, dict):
            return entry
        name = Path(entry["shard"]).name
        if name not in self._shards:
            self._shards[name] = Shard(self._folder / FOLDER / name, checked=False)
        return to_torch(self._shards[name].array(entry["key"], entry["dtype"], tuple(entry["shape"])), entry["dtype"])
