"""Examines the compiled regions of a run: each kernel against its nodes, and each graph against the program it was made of.

A kernel is judged by what it left, from what it was given: its nodes are run in eager, in float64, and with the casts
inside it left out. A graph is judged in float64, where rounding is out of the way: the program that Dynamo has traced, and
its gradients, must give what the graph gives. What differs there differs in any precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from numscope.core.job_files.regions import NodeEntry, Place
from numscope.core.report import Source
from numscope.diagnose.regions.graph import CannotRun, Graph, Values, double, is_exact, is_foreign, own, registered
from numscope.diagnose.regions.judged import Judged, judge, runner
from numscope.diagnose.regions.recorded import RecordedRegions, Region
from numscope.diagnose.replay.measures import relative_error, to_double, unit_roundoff

# Two ways to the same value in float64 are nearer than this unless one of them is float32 inside: half its digits.
_SAME = 2.0**-26
# A gradient is nearer to what a coarser format gives than to what its own does: 13 bits are between float32 and TF32 or
# float16, and this is half of them.
_COARSER = 2.0**6.5
_COARSE = ("bfloat16", "float16")


@dataclass(frozen=True)
class Finding:
    """A judgement of a kernel, or of a line of the program."""

    region: str
    step: int
    kind: str  # kernel, write (lost), miswrite (of another value), decomposition, precision, custom
    name: str  # the kernel's, or the operator's
    operators: tuple[str, ...]
    place: Place | None
    module: str
    is_wrong: bool
    error: float
    judged: Judged | None = None
    others: tuple[Place, ...] = ()  # other lines of the same kernel

    def sentence(self) -> str:
        """Return the finding in one sentence."""
        where = f" at {_shown(self.place)}" if self.place is not None else ""
        if self.kind == "decomposition":
            return f"wrong: decomposition of {self.name}{where} is off by {self.error:.0e} in any precision"
        if self.kind == "custom":
            rest = "every other kernel is right, and its own code is not here to be held against float64"
            return f"the custom operator {self.name}{where} is what remains: {rest}"
        if self.kind == "write":
            return f"wrong: the in-place write {self.name}{where} is lost in the compiled graph"
        if self.kind == "precision":
            return f"wrong: {self.name}{where} is computed in a coarser format than eager computes in: {self.error:.0e} off"
        if self.kind == "miswrite":
            return f"wrong: the in-place write {self.name}{where} leaves another value, {self.error:.0e} off in any precision"
        assert self.judged is not None
        what = ", ".join(self.operators[:4]) or self.name
        errors = f"{self.judged.compiled:.0e} against {self.judged.eager:.0e}"
        if self.is_wrong:
            also = f" (also {', '.join(map(_shown, self.others[:4]))})" if self.others else ""
            return f"wrong: kernel {self.name} of {what}{where}{also} is off: {errors} in eager, against float64"
        if self.judged.has_elided_casts:
            return f"casts elided in fused kernel {self.name}: nearer to float64 than eager ({errors}): not a bug"
        return f"kernel {self.name} is as near to float64 as eager ({errors}): not a bug"

    def source(self) -> Source | None:
        """Return the line as a report has it."""
        place = self.place
        return Source(place["file"], place["line"], place["function"], place["code"]) if place is not None else None


@dataclass(frozen=True)
class Examined:
    """The findings of all regions of a rank."""

    findings: tuple[Finding, ...] = ()
    lacks: tuple[str, ...] = ()  # what could not be examined, a sentence each
    regions: tuple[str, ...] = ()
    steps: frozenset[int] = field(default_factory=frozenset)

    @property
    def custom(self) -> list[Finding]:
        """Return the operators of the job that could not be run here."""
        return [finding for finding in self.findings if finding.kind == "custom"]

    @property
    def wrong(self) -> list[Finding]:
        """Return what is wrong, the graphs before the kernels: a graph that computes something else misleads about them."""
        return [finding for finding in self.findings if finding.is_wrong]

    def to_dict(self) -> dict[str, object]:
        """Return the answer as the report has it."""
        told = [*self.wrong, *(f for f in self.findings if not f.is_wrong and f.judged and f.judged.has_elided_casts)]
        worst = max((f.judged.worst for f in self.findings if f.judged and not f.is_wrong), default=0.0)
        return {
            "regions": list(self.regions),
            "kernels": sum(finding.kind == "kernel" for finding in self.findings),
            "found": [finding.sentence() for finding in told],
            "lacks": list(self.lacks),
            "worst": worst,
        }


def examine(recorded: RecordedRegions) -> Examined:
    """Examine the regions of a rank of a run."""
    lacks: dict[str, None] = dict.fromkeys(recorded.found["lacks"] if recorded.found else [])
    graphs: list[Finding] = []
    kernels: list[Finding] = []
    forward: dict[str, Region] = {}
    regions = recorded.regions()
    for region in regions:
        if region.entry["kind"] == "backward":
            if not any(finding.region.split()[0] == region.entry["frame"] for finding in graphs):
                graphs += _collected(_backward(forward.get(region.entry["frame"]), region), region, lacks)
        else:
            forward[region.entry["frame"]] = region
            graphs += _collected(_writes(region), region, lacks)
            graphs += _collected(_program(region), region, lacks)
        kernels += _collected(_kernels(recorded, region), region, lacks)
    names = tuple(dict.fromkeys(region.name for region in regions))
    steps = frozenset(region.run["step"] for region in regions)
    return Examined((*graphs, *kernels), tuple(lacks), names, steps)


def _collected(found: Iterator[Finding | str], region: Region, lacks: dict[str, None]) -> Iterator[Finding]:
    """Yield findings, and note what could not be examined."""
    try:
        for one in found:
            if isinstance(one, str):
                lacks[f"{region.name}: {one}"] = None
            else:
                yield one
    except (CannotRun, MemoryError) as why:
        lacks[f"{region.name}: {why}"] = None


# Kernels --------------------------------------------------------------------------------------------------------------


def _kernels(recorded: RecordedRegions, region: Region) -> Iterator[Finding | str]:
    """Yield what was found of each kernel: its worst buffer, or the first one that is off."""
    known: Values = dict(region.inputs)
    if not region.run["buffers"]:
        yield from _as_one(region, region.run["again"])
        return
    buffers = recorded.buffers(region)
    for number in sorted({one[0] for one in buffers}):
        mine = [one for one in buffers if one[0] == number]
        order = {name: place for place, name in enumerate(region.graph.nodes)}
        best: Finding | None = None
        for _, kernel, node, tensor in sorted(mine, key=lambda one: order.get(one[2], -1)):
            found = _judged(region, kernel, node, tensor, known)
            if isinstance(found, str):
                yield found
            elif best is None or (found.is_wrong, found.error) > (best.is_wrong, best.error):
                best = found
            if best is not None and best.is_wrong:
                break
        if best is not None:
            yield best
        known |= {
            node: tensor.reshape(region.graph.nodes[node]["shape"] or tensor.shape) for _, _, node, tensor in mine
        }
    for name, value in zip(_outputs(region.graph), region.outputs):
        if name is not None and name not in known and isinstance(value, torch.Tensor):
            # From the region's inputs: what made it may have made again what other kernels left, not read it.
            yield _judged(region, "of an output", name, value, region.inputs)


def _as_one(region: Region, why: str) -> Iterator[Finding | str]:
    """Yield what was found of a region whose buffers are not known: of its outputs, from its inputs."""
    yield f"its kernels could not be looked at one by one ({why or 'it left nothing'})"
    for name, value in zip(_outputs(region.graph), region.outputs):
        if name is not None and isinstance(value, torch.Tensor):
            yield _judged(region, "of the whole region", name, value, region.inputs)


def _judged(region: Region, kernel: str, node: str, tensor: torch.Tensor, known: Mapping[str, object]) -> Finding | str:
    graph = region.graph
    names = graph.needed(node, known)
    if any(graph.is_random(name) for name in names):
        return f"{node} of {kernel} is made of random numbers: not made again"
    entries = [graph.nodes[name] for name in names if graph.nodes[name]["op"] != "placeholder"]
    foreign = [entry for entry in entries if is_foreign(entry["target"])]
    absent = [entry for entry in foreign if not graph.is_known(entry["name"])]
    if absent:
        one = absent[-1]
        return Finding(
            region.name,
            region.run["step"],
            "custom",
            _operator(one),
            (_operator(one),),
            one["place"],
            one["module"],
            False,
            0.0,
        )
    try:
        judged = judge(tensor, runner(graph, node, known))
    except CannotRun as why:
        return f"{node} of {kernel}: {why}"
    suspects = foreign or entries
    place = suspects[-1]["place"] if suspects else graph.nodes[node]["place"]
    places = {(e["place"]["file"], e["place"]["line"]): e["place"] for e in suspects if e["place"]}
    others = tuple(one for one in places.values() if place is None or one["line"] != place["line"])
    return Finding(
        region.name,
        region.run["step"],
        "kernel",
        kernel,
        _operators(suspects),
        place,
        graph.nodes[node]["module"],
        judged.is_off,
        judged.compiled,
        judged,
        others,
    )


def _operators(entries: Iterable[NodeEntry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_operator(entry) for entry in entries if entry["target"] != "operator.getitem"))


def _operator(entry: NodeEntry) -> str:
    """Return the operator that a node is, or was decomposed from, as torch's users write it."""
    name = entry["original"] or entry["target"].removeprefix("ops.")
    return ".".join(name.split(".")[:2]) if name.startswith(("aten.", "prims.")) else name


def _outputs(graph: Graph) -> list[str | None]:
    found: Any = graph.outputs
    while isinstance(found, dict) and "tuple" in found:
        found = found["tuple"]
        if len(found) == 1 and isinstance(found[0], (list, dict)) and "node" not in found[0]:
            found = found[0]
    return [one.get("node") if isinstance(one, dict) else None for one in found or []]


# Graphs against the program -------------------------------------------------------------------------------------------


def _traced_inputs(region: Region) -> dict[str, Any]:
    """Return the inputs of the program that Dynamo has traced, by name; raise where they are not the graph's."""
    traced = region.traced
    if not traced.nodes:
        raise CannotRun("the program that it was made of is not known")
    found: dict[str, Any] = {}
    for name in region.graph.placeholders:
        number = _number(name)
        if number is None or number >= len(traced.placeholders):
            raise CannotRun("its inputs are not those of the program")
        entry = traced.nodes[traced.placeholders[number]]
        value = region.inputs.get(name)
        if isinstance(value, torch.Tensor) and entry["shape"] is not None and list(value.shape) != entry["shape"]:
            raise CannotRun("its inputs are not those of the program")
        found[entry["name"]] = value
    return found


def _number(placeholder: str) -> int | None:
    """Return the number of an input as AOTAutograd names it: `primals_1` is the first, or `arg0_1`."""
    if placeholder.startswith("primals_"):
        return int(placeholder.removeprefix("primals_")) - 1
    if placeholder.startswith("arg") and placeholder.endswith("_1"):
        return int(placeholder.removeprefix("arg").removesuffix("_1"))
    return None


def _runnable(graph: Graph, given: Iterable[str]) -> list[str]:
    """Return the nodes that can be made from inputs: without those that depend on random or unknown values."""
    known = set(given)
    names: list[str] = []
    for name, node in graph.nodes.items():
        if node["op"] in ("placeholder", "output") or graph.is_random(name) or not graph.is_known(name):
            continue
        if node["op"] == "get_attr" and name not in known:
            continue
        if all(one in known for one in graph.inputs[name]):
            known.add(name)
            names.append(name)
    return names


def _writes(region: Region) -> Iterator[Finding | str]:
    """Yield the writes to inputs that the program makes, and the graph does not, or makes with other values."""
    traced, given = region.traced, _traced_inputs(region)
    by_name = {traced.placeholders[_number(name) or 0]: name for name in region.graph.placeholders}
    writers: dict[str, list[NodeEntry]] = {}
    for name, node in traced.nodes.items():
        for written in (_base(traced, one) for one in _written_by(traced, name)):
            if isinstance(given.get(written), torch.Tensor):
                writers.setdefault(written, []).append(node)
    if not writers:
        return
    made, left_out = _after(region.graph, region.inputs)
    after, unknown = _after(traced, given)
    for written, nodes in writers.items():
        inside, before = by_name[written], given[written]
        if written in unknown or inside in left_out:
            yield f"{written}: what is written to it is not known"
            continue
        moved = relative_error(after[written], to_double(before))
        if not moved or torch.equal(after[written].to(before.dtype), before):
            continue
        if _is_given_back(region, after[written], len(writers)):
            continue
        is_lost = torch.equal(region.after.get(inside, before), before)
        error = relative_error(made[inside], after[written])
        if is_lost or error > _SAME:
            node = nodes[0] if is_lost else nodes[-1]
            kind, size = ("write", moved) if is_lost else ("miswrite", error)
            name, operators = node["name"], (node["target"],)
            where = node["place"], node["module"]
            yield Finding(region.name, region.run["step"], kind, name, operators, *where, True, size)


def _after(graph: Graph, given: Mapping[str, object]) -> tuple[Values, set[str]]:
    """Return the values of a graph in float64 when all has run, and the inputs to which what was not made is written."""
    names = _runnable(graph, given)
    left = [name for name in graph.nodes if name not in names]
    unknown = {_base(graph, one) for name in left for one in _written_by(graph, name)}
    return graph.run(names, given, double), unknown


def _is_given_back(region: Region, value: torch.Tensor, most: int) -> bool:
    """Tell whether a region gives a value to its caller, which writes it: such values are its first outputs."""
    return any(
        isinstance(one, torch.Tensor) and one.shape == value.shape and torch.allclose(one.to(value.dtype), value, 1e-2)
        for one in region.outputs[:most]
    )


def _written_by(graph: Graph, name: str) -> list[str]:
    """Return the nodes that a node writes to: its first one, or those that its operator's schema says."""
    node = graph.nodes[name]
    if _writes_in_place(node):
        return graph.inputs[name][:1]
    found = registered(node["target"])
    if found is None or not found._schema.is_mutable:
        return []
    args: Any = node["args"]
    kwargs: Any = node["kwargs"]
    given = dict(enumerate(args["tuple"])) | kwargs["items"]
    wanted = [
        (at, one.name) for at, one in enumerate(found._schema.arguments) if one.alias_info and one.alias_info.is_write
    ]
    values = [given.get(at, given.get(called)) for at, called in wanted]
    return [value["node"] for value in values if isinstance(value, dict) and "node" in value]


def _writes_in_place(node: NodeEntry) -> bool:
    short = node["target"].rpartition(".")[2]
    if node["target"].startswith("ops."):
        short = node["target"].split(".")[-2]
    return (short.endswith("_") and not short.startswith("__")) or short in ("setitem", "iadd", "imul", "isub")


def _base(graph: Graph, name: str) -> str:
    """Return the input that a node is a view of, or the node itself."""
    while graph.nodes[name]["op"] != "placeholder" and graph.inputs[name]:
        name = graph.inputs[name][0]
    return name


class _Made:
    """Values in float64, to be found by their content: whatever shape a graph gives them."""

    def __init__(self, values: Mapping[str, object], all_dtypes: bool = False) -> None:
        self._by_size: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and (all_dtypes or value.is_floating_point()):
                self._by_size.setdefault(value.numel(), []).append((name, value.detach().flatten()))

    def nearest(self, value: torch.Tensor) -> tuple[float, str]:
        """Return how far the nearest value is, and its node."""
        flat = value.detach().flatten()
        turned = value.detach().transpose(-1, -2).flatten() if value.dim() > 1 else flat
        return min(
            (
                (min(relative_error(other, flat), relative_error(other, turned)), name)
                for name, other in self._by_size.get(value.numel(), ())
            ),
            default=(float("inf"), ""),
        )

    def nearest_in_any_order(self, value: torch.Tensor) -> float:
        """Return how far the nearest value is when the elements of both are sorted: a graph may lay them out otherwise."""
        flat = value.detach().flatten().sort().values
        others = (other.sort().values for _, other in self._by_size.get(value.numel(), ()))
        return min((relative_error(other, flat) for other in others), default=float("inf"))


def _program(region: Region) -> Iterator[Finding | str]:
    """Yield the line from which on a graph gives something else than the program, in float64."""
    given = _traced_inputs(region)
    made = region.graph.run(_runnable(region.graph, region.inputs), region.inputs, double)
    names = _runnable(region.traced, given)
    if len(names) < sum(node["op"] not in ("placeholder", "output") for node in region.traced.nodes.values()):
        yield from _not_made(region.traced)
    values = region.traced.run(names, given, double)
    ends = [name for name in _outputs(region.traced) if name in names]
    yield from _first_unlike(region, region.traced, values, made, [name for name in ends if name], region.graph)


def _not_made(traced: Graph) -> Iterator[str]:
    """Yield why parts of a program are not held against the graph; an operator of the job's is told as a kernel."""
    if any(map(traced.is_random, traced.nodes)):
        yield "what depends on random numbers is not held against the program"
    for name, node in traced.nodes.items():
        if not traced.is_known(name) and not is_foreign(node["target"]):
            yield f"what depends on {node['target']} is not held against the program"


def _first_unlike(
    region: Region, traced: Graph, values: Values, made: Values, ends: list[str], graph: Graph
) -> Iterator[Finding]:
    """Yield the first node on the way to an end whose value the graph does not have, though it has what that is made of.

    A node of which nothing is left in the graph, and whose value is nowhere in it, tells nothing: what it is made of is
    looked at in its place.
    """
    seen: dict[str, float | None] = {}
    found = _Made(made)

    def distance(name: str) -> float | None:
        if name not in seen:
            seen[name] = _distance(name, values.get(name), made, graph, found)
        return seen[name]

    def unlike_before(name: str, visited: set[str]) -> str | None:
        for one in traced.inputs[name]:
            if one in visited:
                continue
            visited.add(one)
            far = distance(one)
            if far is not None and far > _SAME:
                return one
            deeper = unlike_before(one, visited) if far is None else None
            if deeper is not None:
                return deeper
        return None

    for end in ends:
        far = distance(end)
        if far is not None and far <= _SAME:
            continue
        name, visited = end, {end}
        while (before := unlike_before(name, visited)) is not None:
            name = before
        size = distance(name)
        # What it is given is nowhere in the graph: it was made into something else on the way.
        absent = (
            one for one in traced.inputs[name] if distance(one) is None and traced.nodes[one]["place"] is not None
        )
        name = next(absent, name)
        node = traced.nodes[name]
        parts = [n for n in graph.nodes.values() if n["origin"] == name and n["original"]]
        operator = _operator(parts[-1]) if parts else node["target"].removeprefix("ops.")
        yield Finding(
            region.name,
            region.run["step"],
            "decomposition",
            operator,
            (operator,),
            node["place"],
            node["module"],
            True,
            float("inf") if size is None else size,
        )
        return


def _distance(name: str, value: object, made: Values, graph: Graph, found: _Made) -> float | None:
    """Return how far a node's value is from what it has become in a graph; None where it has become nothing."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return 0.0
    mine = {one: made[one] for one in _results(graph, name) if one in made}
    if mine:
        far = _Made(mine, all_dtypes=True).nearest(value)[0]
        if (
            far > _SAME and value.is_floating_point()
        ):  # where a node came from is not always kept when graphs are changed
            others = {one: value for one, value in made.items() if graph.nodes[one]["origin"] != name}
            return 0.0 if _Made(others).nearest(value)[0] <= _SAME else far
        return far
    if not value.is_floating_point():  # choices and places: a graph that needs none of them has others
        return 0.0
    far = min(found.nearest(value)[0], found.nearest_in_any_order(value))
    return far if far <= _SAME else None


def _results(graph: Graph, origin: str) -> list[str]:
    """Return what a node of the program has become in a graph, as far as nodes of others use it."""
    mine = {name for name, node in graph.nodes.items() if node["origin"] == origin and node["op"] != "placeholder"}
    return [name for name in mine if any(user not in mine for user in _users(graph, name))]


# Gradients ------------------------------------------------------------------------------------------------------------


def _backward(forward: Region | None, region: Region) -> Iterator[Finding | str]:
    """Yield the line from which on a backward graph gives other gradients than autograd, in float64."""
    if forward is None:
        raise CannotRun("its forward pass was not recorded")
    given = _traced_inputs(forward)
    traced, graph = forward.traced, region.graph
    names = _runnable(traced, given)
    if len(names) < sum(node["op"] not in ("placeholder", "output") for node in traced.nodes.values()):
        yield from _not_made(traced)
        return
    ends = [name for name in _outputs(traced) if name]
    tangents = [name for name in graph.placeholders if name.startswith("tangents_")]
    leaves = {
        name: value.detach().double().requires_grad_()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in given.items()
    }
    values = traced.run(names, leaves, double, grad=True)
    outs = [values[name] for name in ends if isinstance(values.get(name), torch.Tensor) and values[name].requires_grad]
    if len(outs) != len(tangents):
        raise CannotRun("its gradients are not those of the program's outputs")
    incoming = [to_double(region.inputs[name]).reshape(out.shape) for name, out in zip(tangents, outs)]
    inside = {name: value for name, value in values.items() if _has_gradient(value)}
    gradients = dict(zip(inside, torch.autograd.grad(outs, list(inside.values()), incoming, allow_unused=True)))
    saved = forward.graph.run(_runnable(forward.graph, forward.inputs), forward.inputs, double)
    known = {name: saved.get(name, region.inputs[name]) for name in graph.placeholders if name in region.inputs}
    made = graph.run(_runnable(graph, known), known, double)
    found = _Made(made)
    for name, result in zip(traced.placeholders, _outputs(graph)):
        gradient = gradients.get(name)
        if gradient is None or result not in made or not _differ(made[result], gradient, traced, gradients, name):
            continue
        users = [user for user in _users(traced, name) if gradients.get(user) is not None]
        while above := [user for user in users if found.nearest(gradients[user])[0] > _SAME]:
            users = [user for user in _users(traced, above[0]) if gradients.get(user) is not None]
        if users:
            node = traced.nodes[users[0]]
            operator = f"the gradient of {node['target'].removeprefix('ops.')}"
            yield Finding(
                region.name,
                region.run["step"],
                "decomposition",
                operator,
                (node["target"],),
                node["place"],
                node["module"],
                True,
                relative_error(made[result].reshape(gradient.shape), gradient),
            )
            return
    yield from _coarser(region, traced, given, names, ends, gradients)


def _differ(
    made: torch.Tensor, gradient: torch.Tensor, traced: Graph, gradients: Mapping[str, torch.Tensor], name: str
) -> bool:
    """Tell whether two gradients differ."""
    return _off_by(made, gradient, traced, gradients, name) > _SAME


def _off_by(
    made: torch.Tensor, gradient: torch.Tensor, traced: Graph, gradients: Mapping[str, torch.Tensor], name: str
) -> float:
    """Return how far off a gradient is, measured by what it is a sum of: the gradients of what uses the input."""
    above = [gradients[user] for user in _users(traced, name) if gradients.get(user) is not None]
    size = max(float(one.norm()) for one in (gradient, *above))
    difference = float((to_double(made).reshape(gradient.shape) - gradient).norm())
    return difference / size if size else difference


def _coarser(
    region: Region,
    traced: Graph,
    given: Mapping[str, torch.Tensor],
    names: list[str],
    ends: list[str],
    exact: Mapping[str, torch.Tensor],
) -> Iterator[Finding]:
    """Yield the line whose gradient is made in a coarser format than the program computes in there, where it shows."""
    line = _coarser_line(region.graph, traced)
    if line is None:
        return
    leaves = {
        name: value.detach().clone().requires_grad_() if _is_floating(value) else value for name, value in given.items()
    }
    values = traced.run(names, leaves, own, grad=True)
    made = {name: values[name] for name in names if _is_floating(values.get(name))}
    if any(_dtype(value) != traced.nodes[name]["dtype"] for name, value in made.items()):
        return  # under autocast: what eager computes there is not known
    outs = [values[name] for name in ends if _has_gradient(values.get(name))]
    tangents = [region.inputs[name] for name in region.graph.placeholders if name.startswith("tangents_")]
    incoming = [tangent.reshape(out.shape).to(out.dtype) for tangent, out in zip(tangents, outs)]
    wanted = [name for name in traced.placeholders if exact.get(name) is not None and _has_gradient(values[name])]
    eager = dict(zip(wanted, torch.autograd.grad(outs, [values[name] for name in wanted], incoming, allow_unused=True)))
    for name, recorded in zip(traced.placeholders, region.outputs):
        if eager.get(name) is None or not isinstance(recorded, torch.Tensor):
            continue
        mine = _off_by(recorded, exact[name], traced, exact, name)
        other = _off_by(eager[name], exact[name], traced, exact, name)
        if mine > _COARSER * max(other, unit_roundoff(recorded.dtype)):
            operator = f"the gradient of {line['target'].removeprefix('ops.')}"
            where = line["place"], line["module"]
            yield Finding(region.name, region.run["step"], "precision", operator, (line["target"],), *where, True, mine)
            return


def _coarser_line(graph: Graph, traced: Graph) -> NodeEntry | None:
    """Return the first node of a program whose line a graph computes for in a format that the program has not there."""
    for node in graph.nodes.values():
        place = node["place"]
        if place is None or node["dtype"] not in _COARSE or node["op"] != "call_function" or _only_moves(node):
            continue
        inside = (one for one in traced.nodes.values() if one["op"] != "placeholder")
        here = [one for one in inside if one["place"] == place and one["dtype"]]
        if here and not any(one["dtype"] in _COARSE for one in here):
            return here[-1]
    return None


def _only_moves(node: NodeEntry) -> bool:
    """Tell whether a node computes nothing: it casts, or is a view."""
    return "convert_element_type" in node["target"] or is_exact(node["target"])


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _has_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _users(graph: Graph, name: str) -> list[str]:
    return [other for other, inputs in graph.inputs.items() if name in inputs]


def _shown(place: Place) -> str:
    return f"{place['file'].rpartition('/')[2]}:{place['line']}"
