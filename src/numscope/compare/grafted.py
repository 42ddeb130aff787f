"""How much of the final error a graft has removed: a grafted run against the reference, beside the run without it.

The final error is that of the outermost modules' outputs in the first step compared, or, where no module was recorded, of
the last call of the forward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from numscope.core.errors import NumscopeError
from numscope.store.reader import Run, open_run


class Compared(Protocol):
    """A comparison, of which the table of calls and the target are read."""

    @property
    def calls(self) -> pa.Table: ...
    @property
    def target(self) -> Run: ...


class Graft(TypedDict):
    """The modules that were grafted, the final error before and after, and the share removed, as the report has it."""

    names: list[str]
    inputs: bool
    ungrafted: str | None
    before: float | None
    after: float | None
    removed: float | None


def final_error(comparison: Compared) -> float | None:
    """Return the relative error of the model's final output; None where it was not compared."""
    calls = comparison.calls
    measured = calls.filter(pc.and_(pc.equal(calls["phase"], "forward"), pc.is_valid(calls["error_out"])))
    if not measured.num_rows:
        return None
    first = measured.filter(pc.equal(measured["step"], pc.min(measured["step"])))
    outermost = first.filter(pc.and_(pc.equal(first["kind"], "module"), pc.is_null(first["parent"])))
    if outermost.num_rows:
        return float(pc.max(outermost["error_out"]).as_py())
    return float(first["error_out"][-1].as_py())


def share_removed(before: float | None, after: float | None) -> float | None:
    """Return which share of an error is gone."""
    if before is None or after is None:
        return None
    return 1 - after / before if before else 0.0


def ungrafted_of(grafted: Run, reference: Run) -> Run | None:
    """Return the run of the same job without the graft, where one lies beside the grafted run; the newest of several."""
    found: list[tuple[str, Run]] = []
    for path in sorted(Path(grafted.path).resolve().parent.iterdir()):
        if path in (Path(grafted.path).resolve(), Path(reference.path).resolve()):
            continue
        if not (path / "manifest.json").is_file():
            continue
        try:
            run = open_run(path)
        except NumscopeError:
            continue
        same = all(run.manifest.get(key) == grafted.manifest.get(key) for key in ("script", "argv", "framework"))
        if same and not run.manifest.get("grafts"):
            found.append((str(run.manifest.get("created") or ""), run))
    _, newest = max(found, key=lambda item: item[0], default=("", None))
    return newest


def details(grafted: Compared, ungrafted: Compared | None) -> Graft:
    """Return the details of a graft for the report."""
    after = final_error(grafted)
    before = final_error(ungrafted) if ungrafted is not None else None
    names = [name for graft in grafted.target.manifest["grafts"] for name in graft["names"] or ["every module"]]
    return {
        "names": names,
        "inputs": any(graft["inputs"] for graft in grafted.target.manifest["grafts"]),
        "ungrafted": str(ungrafted.target.path) if ungrafted is not None else None,
        "before": before,
        "after": after,
        "removed": share_removed(before, after),
    }


def sentence(graft: Graft) -> str:
    """Return the effect of a graft in words."""
    what = ", ".join(graft["names"][:4]) + (" …" if len(graft["names"]) > 4 else "")
    what = f"{what} {'given' if graft['inputs'] else 'gives'} the reference's tensors"
    if graft["after"] is None:
        return f"{what}; no final output could be compared"
    if graft["before"] is None:
        return (
            f"{what}: the final error is {graft['after']:.2g}; to know how much of it that removed, "
            "give the run without the graft: --ungrafted RUN"
        )
    return (
        f"{what}: the final error is {graft['after']:.2g}, without it {graft['before']:.2g} "
        f"({graft['ungrafted']}): {graft['removed']:.0%} of it removed"
    )
