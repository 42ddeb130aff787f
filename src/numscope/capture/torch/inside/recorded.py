"""Records compiled regions: their graphs as they are compiled, and runs of them in chosen steps.

Nothing of it is known to Dynamo or Inductor: three of their functions are watched, one that has just lowered a graph, one
that gives Dynamo's graph to the backend, one that runs a compiled graph. In a chosen step the first run of each graph is
recorded: what goes in, what comes out, and, from a second run of the same kernels on copies, what each kernel left.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from numscope.capture.torch.identity.subclasses import to_numpy
from numscope.capture.torch.inside.graphs import lowered, nodes_of, places_of
from numscope.capture.torch.inside.rerun import NoRerun, Rerun, clone
from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.patching import keep, together, when_imported
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch
from numscope.core.job_files.regions import (
    FILE,
    FOLDER,
    FORMAT,
    BufferEntry,
    GraphEntry,
    NodeEntry,
    Place,
    RunEntry,
    TensorEntry,
)
from numscope.store.rundir import write_document
from numscope.store.writing.shard_writer import Kept, ShardWriter

_LOWERING, _RUNNING, _TRACING = "torch._inductor.graph", "torch._inductor.output_code", "torch._dynamo.output_graph"
_COMMUNICATES = ("_c10d_functional", "c10d", "_dtensor")


class _Framed(NamedTuple):
    """A compiled graph, and Dynamo's number of the frame that it was compiled for."""

    compiled: weakref.ref[Any]
    frame: str


class Inside:
    """The graphs and runs of a capture's compiled regions."""

    def __init__(self, watch: Watch, all_steps: bool) -> None:
        self._watch = watch
        self._all_steps = all_steps  # those that the user has chosen; else the first one
        self._chosen: int | None = None
        self._graphs: dict[str, GraphEntry] = {}
        self._traced: dict[str, list[NodeEntry]] = {}
        self._places: dict[str, dict[int, Place]] = {}
        self._reruns: dict[str, Rerun | str] = {}
        self._frames: dict[int, _Framed] = {}  # of each compiled graph, by its id
        self._runs: list[_Run] = []
        self._done: set[tuple[int, str]] = set()
        self._lacks: dict[str, None] = {}
        self._written: list[RunEntry] = []
        self._shards: ShardWriter | None = None
        self._constants: dict[str, dict[str, torch.Tensor]] = {}

    # Installation -------------------------------------------------------------------------------------------------

    def install(self) -> Undo:
        """Watch Dynamo and Inductor, now or when they are loaded; return what ends that."""
        undo: list[Undo] = []
        watched: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
            (_TRACING, "OutputGraph", "call_user_compiler", self._tracing),
            (_LOWERING, "GraphLowering", "compile_to_module", self._lowering),
            (_RUNNING, "CompiledFxGraph", "post_compile", self._compiled),
            (_RUNNING, "CompiledFxGraph", "__call__", self._running),
        )
        for module, owner, name, around in watched:

            def begin(module: str = module, owner: str = owner, name: str = name, around: Any = around) -> None:
                found = getattr(sys.modules[module], owner, None)
                original = vars(found or object).get(name)
                if original is None:
                    self._lacks["this torch compiles in a way that is not known"] = None
                else:
                    undo.append(keep(found, name, around(original)))

            if module in sys.modules:
                begin()
            else:
                undo.append(when_imported(module, begin))
        return together(undo)

    def _tracing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_user_compiler(output: Any, graph: Any, *args: object, **kwargs: object) -> Any:
            with OwnComputation(self._watch, "a traced graph"):
                self._traced[_frame()] = nodes_of(graph.graph)
            return original(output, graph, *args, **kwargs)

        return call_user_compiler

    def _lowering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_to_module(lowering: Any, *args: object, **kwargs: object) -> Any:
            module = original(lowering, *args, **kwargs)
            if lowering.name is None or not getattr(lowering, "is_const_graph", False):
                with OwnComputation(self._watch, "a compiled graph"):
                    self._lowered(lowering)
            return module

        return compile_to_module

    def _lowered(self, lowering: Any) -> None:
        frame, graph = _frame(), lowering.module.graph
        places = self._places.setdefault(frame, {})
        if not lowering.is_backward:
            places.update(places_of(graph))
        entry = lowered(lowering, frame, places, {})
        if not lowering.is_backward:
            entry["traced"] = self._traced.get(frame, [])
        self._graphs[entry["key"]] = entry
        named = {node.target: getattr(lowering.module, node.target) for node in graph.nodes if node.op == "get_attr"}
        self._constants[entry["key"]] = {name: t for name, t in named.items() if isinstance(t, torch.Tensor)}

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def post_compile(compiled: Any, *args: object, **kwargs: object) -> Any:
            self._frames[id(compiled)] = _Framed(weakref.ref(compiled), _frame())
            return original(compiled, *args, **kwargs)

        return post_compile

    def _graph_of(self, compiled: Any) -> str:
        """Return the key of what is known of a compiled graph; frames that are alike have the same one from the cache."""
        key: str = compiled.cache_key
        entry = self._graphs.get(key)
        known = self._frames.get(id(compiled))
        if entry is None or known is None or known.compiled() is not compiled or known.frame in ("", entry["frame"]):
            return key
        frame, own = known.frame, f"{key}@{known.frame}"
        if own not in self._graphs:
            traced = self._traced.get(frame, []) if entry["kind"] != "backward" else []
            self._graphs[own] = GraphEntry(**{**entry, "key": own, "frame": frame, "traced": traced})
            self._constants[own] = self._constants.get(key, {})
        return own

    def _running(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(compiled: Any, inputs: Sequence[Any]) -> Any:
            run = None
            key = self._graph_of(compiled)
            if self._is_wanted(key):
                with OwnComputation(self._watch, "a region's inputs"):
                    run = _Run(self._step(), key, inputs)
            if run is None:
                return original(compiled, inputs)
            kept = list(inputs)  # which the region forgets as it goes
            outputs = original(compiled, inputs)
            with OwnComputation(self._watch, "a region's buffers"):
                run.ran(compiled, kept, outputs, self._rerun(key, compiled))
                self._runs.append(run)
            return outputs

        return __call__

    def _step(self) -> int:
        return self._watch.recorder.step

    def _is_wanted(self, key: str) -> bool:
        if not self._watch.on or self._watch.thread.here.busy:
            return False
        step = self._step()
        if self._chosen is None:
            self._chosen = step
        if (step, key) in self._done or not (self._all_steps or step == self._chosen):
            return False
        self._done.add((step, key))
        if key not in self._graphs:
            self._lacks[
                f"the region {key[:12]} was compiled before, or its graph came from a cache: "
                "capture with an empty folder TORCHINDUCTOR_CACHE_DIR"
            ] = None
            return False
        return True

    def _rerun(self, key: str, compiled: Any) -> Rerun | str:
        """Return the code that runs a graph again, or why it is not to be run again."""
        if key not in self._reruns:
            self._reruns[key] = self._made(compiled, self._graphs[key]["nodes"])
        return self._reruns[key]

    @staticmethod
    def _made(compiled: Any, nodes: Iterable[NodeEntry]) -> Rerun | str:
        if any(part in node["target"] for node in nodes for part in _COMMUNICATES):
            return "it communicates with other ranks"
        try:
            return Rerun(compiled)
        except (NoRerun, OSError, SyntaxError) as why:
            return str(why)

    # Writing ------------------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write what was recorded since the last time into a rank's folder."""
        if not self._runs and not self._lacks:
            return
        if self._shards is None:
            (folder / FOLDER).mkdir(exist_ok=True)
            self._shards = ShardWriter(folder / FOLDER)
        runs, self._runs = self._runs, []
        for run in runs:
            self._written.append(run.entry(self._store))
            graph = self._graphs[run.key]
            if not graph["constants"] and self._constants.get(run.key):
                constants = self._constants.pop(run.key)
                graph["constants"] = {name: self._store(tensor) for name, tensor in constants.items()}
        used = {run["graph"] for run in self._written}
        document = {
            "format": FORMAT,
            "torch": torch.__version__,
            "graphs": [graph for key, graph in self._graphs.items() if key in used],
            "runs": self._written,
            "lacks": list(self._lacks),
        }
        write_document(folder, FILE, document)

    def close(self) -> None:
        """Close the files."""
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def _store(self, tensor: torch.Tensor) -> TensorEntry:
        assert self._shards is not None
        array = to_numpy(tensor.detach().resolve_conj().contiguous())
        dtype = str(tensor.dtype).removeprefix("torch.")
        [where] = self._shards.add([Kept(None, dtype, tuple(tensor.shape), False, array)])
        shard, key = where
        return TensorEntry(shard=shard, key=key, dtype=dtype, shape=list(tensor.shape))


class _Run:
    """One run of a region, whose tensors are copies."""

    def __init__(self, step: int, key: str, inputs: Sequence[Any]) -> None:
        self.step = step
        self.key = key
        self._inputs = [clone(value) if isinstance(value, torch.Tensor) else value for value in inputs]
        self._state = _random_state(inputs)
        self._after: dict[str, torch.Tensor] = {}
        self._outputs: list[Any] = []
        self._seen: list[Any] = []
        self._again = ""

    def ran(self, compiled: Any, inputs: list[Any], outputs: Sequence[Any], rerun: Rerun | str) -> None:
        """Note what the region gave, and run it again with a look at its buffers."""
        written = getattr(compiled, "mutated_input_idxs", None) or ()
        self._after = {str(i): clone(inputs[i]) for i in written if isinstance(inputs[i], torch.Tensor)}
        self._outputs = [clone(value) if isinstance(value, torch.Tensor) else value for value in outputs]
        if isinstance(rerun, str):
            self._again = rerun
            return
        now = _random_state(inputs)
        try:
            _set_random_state(self._state)
            given = [clone(value) if isinstance(value, torch.Tensor) else value for value in self._inputs]
            again, self._seen = rerun(given)
        except Exception as error:  # foreign code: what it gave stands, its buffers are not known
            self._seen, self._again = [], f"{type(error).__name__} when its code ran again"
            return
        finally:
            _set_random_state(now)
        self._again = "same" if all(map(_equal, again, self._outputs)) else "it does not repeat itself"

    def entry(self, store: Callable[[torch.Tensor], TensorEntry]) -> RunEntry:
        """Return the run as the file has it."""

        def kept(value: object) -> Any:
            return store(value) if isinstance(value, torch.Tensor) else value if _is_plain(value) else None

        return RunEntry(
            step=self.step,
            graph=self.key,
            inputs=[kept(value) for value in self._inputs],
            after={number: store(tensor) for number, tensor in self._after.items()},
            outputs=[kept(value) for value in self._outputs],
            buffers=[
                BufferEntry(name=s.name, kernel=s.kernel, number=s.number, tensor=store(s.tensor)) for s in self._seen
            ],
            again=self._again,
        )


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def _equal(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is other or one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one, other) or torch.allclose(one, other, 0, 0, equal_nan=True))


_State = tuple[torch.Tensor, list[tuple[torch.device, torch.Tensor]]]


def _random_state(inputs: Iterable[Any]) -> _State:
    """Return the state of the generators of the CPU and of the inputs' devices."""
    devices = {value.device for value in inputs if isinstance(value, torch.Tensor) and value.is_cuda}
    return torch.get_rng_state(), [(device, torch.cuda.get_rng_state(device)) for device in devices]


def _set_random_state(state: _State) -> None:
    host, devices = state
    torch.set_rng_state(host)
    for device, one in devices:
        torch.cuda.set_rng_state(one, device)


def _frame() -> str:
    """Return Dynamo's number of the frame that is compiled now."""
    found = importlib.import_module("torch._guards").CompileContext.current_compile_id()
    return f"{found.frame_id}/{found.frame_compile_id}" if found is not None else ""
