"""Another witness of level aten: reads each operator's tensors from memory itself, below numscope's own mode."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import numscope as ns
from numscope.fingerprint.definition import fingerprint

SILENT = {"detach", "alias", "lift_fresh", "_local_scalar_dense"}
_numpy = torch._C.TensorBase.numpy  # as it is without numscope
_node, _task = torch._C._current_autograd_node, torch._C._current_graph_task_id


def true_hash(tensor: torch.Tensor) -> int:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        content = _numpy(torch._C.TensorBase.detach(tensor)).copy()
    return int(fingerprint(np.ascontiguousarray(content)).hash[0])


def named(group: str, values: Any) -> list[tuple[str, torch.Tensor]]:
    found: list[tuple[str, torch.Tensor]] = []
    for key, value in values:
        if isinstance(value, torch.Tensor):
            found.append((f"{group}.{key}", value))
        elif isinstance(value, (list, tuple)):
            found += named(f"{group}.{key}", enumerate(value))
    return found


class Observer(TorchDispatchMode):
    """Reads each operator's tensors from memory, before it and after it; it is below numscope's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self.own: Callable[[], bool] = lambda: True  # tells whether numscope's own work is being done
        self.end: Callable[[], None] = lambda: None  # ends numscope's step

    def see(self, name: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
        for slot, tensor in tensors:
            self.hashes.setdefault(f"{name}.{slot}", []).append(true_hash(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = func._schema.name.partition("::")[2]
        if self.own() or op in SILENT or func.namespace == "profiler":
            return func(*args, **kwargs)
        phase = "forward" if _node() is None and _task() == -1 else "backward"
        name = f"Aten.{op}.{self.counts[op, phase]}.{phase}"
        self.counts[op, phase] += 1
        arguments = func._schema.arguments
        out = {item.name for item in arguments if item.is_out}
        read = [(key, value) for key, value in kwargs.items() if key not in out]
        if not op.startswith("empty"):
            self.see(name, named("input", enumerate(args)) + named("kwargs", read))
        result = returned = func(*args, **kwargs)
        if result is None:
            result = [
                args[place] if place < len(args) else kwargs.get(item.name)
                for place, item in enumerate(arguments)
                if item.alias_info and item.alias_info.is_write
            ]
        results = result if isinstance(result, (list, tuple)) else [result]
        if not op.startswith("empty"):
            self.see(name, named("output", enumerate(results)))
        return returned


def run(work: Callable[[Observer], None], model: Any = None, **options: Any) -> tuple[Observer, list[dict[str, Any]]]:
    """Do the work with both watching; return the observer, and the rows of the run."""
    observer = Observer()
    with TemporaryDirectory() as folder, torch.no_grad(), observer:
        with ns.capture(Path(folder) / "run", model, level="aten", on_error="raise", **options) as cap:
            thread = cap._frontend.watch.thread  # type: ignore[attr-defined]
            observer.own, observer.end = lambda: thread.here.busy, cap.step
            work(observer)
            observer.own = lambda: True
        return observer, ns.open_run(Path(folder) / "run").tensors.to_pylist()


def assert_true(observer: Observer, rows: list[dict[str, Any]]) -> None:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row["hash"])
    wrong = {}
    for name, hashes in observer.hashes.items():
        assert len(found[name]) == len(hashes), name
        pairs = [(have, want) for have, want in zip(found[name], hashes) if have is not None and have != want]
        if pairs:
            wrong[name] = pairs
    assert not wrong, wrong
