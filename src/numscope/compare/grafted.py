"""How much of the final error a graft has removed: a grafted run against the reference, beside the run without it.

The final error is that of what the model gives in the end: the outermost modules' outputs in the first step compared,
or, where no module was recorded, the last call of the forward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from numscope.core.errors import NumscopeError
from numscope.store.reader import Run, open_run


def final_error(comparison: Any) -> float | None:
    """Return the relative error of what the model gives in the end; None where nothing of that was compared."""
    calls = comparison.calls
    known = calls.filter(pc.and_(pc.equal(calls["phase"], "forward"), pc.is_valid(calls["error_out"])))
    if not known.num_rows:
        return None
    first = known.filter(pc.equal(known["step"], pc.min(known["step"])))
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
    return max(found, key=lambda item: item[0])[1] if found else None


def told(grafted: Any, ungrafted: Any | None) -> dict[str, Any]:
    """Return what the report says of a graft: what was put in, the final error before and after, the share removed."""
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


def sentence(graft: dict[str, Any]) -> str:
    """Return what a graft did, in words."""
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
