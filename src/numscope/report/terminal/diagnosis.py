"""The diagnosis on one screen: the place, the kind of fault, the repair, and the figures that prove it.

DIVERGED  at Functional.gelu.2.forward in blocks.2.mlp, step 0

 gelu in blocks.2.mlp: inputs identical, outputs differ by 0.0002 (rounding explains 2.4e-07)
 model.py:41
   return F.gelu(x, approximate="tanh")

 mechanism  semantic: the two compute different things, in any precision
 repair     equal to the reference with approximate='none' (now 'tanh') in Functional.gelu.2.forward

 lift       as recorded  2.0e-04  ━━━━━━━━━━━━━━━━━━━━━━━
            float32      2.0e-04  ━━━━━━━━━━━━━━━━━━━━━━━
            float64      2.0e-04  ━━━━━━━━━━━━━━━━━━━━━━━  stays: no rounding does that
            rounding     1.0e-07  ━━━━━━━━━━━━━━
"""

from __future__ import annotations

import math
import re
import shutil
from typing import TextIO

from numscope.core.json_value import JsonObject
from numscope.core.language.chinese import say, translated
from numscope.core.report import Origin, Report
from numscope.core.untrusted import shown as safely_shown
from numscope.report.terminal.comparison import MEANING, Paint, verdict_badge
from numscope.report.terminal.lines import columns, padded, wrapped

_SHOWS = {
    "semantic": "stays: no rounding does that",
    "precision": "gone: only the dtypes differ",
    "order": "shrinks with the precision: rounding",
}
_NOTHING_TO_REPAIR = ("device", "order")  # in the program
_LABEL = 11
_MOST_COMPILED = 6  # sentences about compiled regions
_BAR = 32  # the longest bar


def print_diagnosis(report: Report, stream: TextIO, colour: bool | None = None) -> None:
    """Print a diagnosis."""
    for line in lines(report, _width(), Paint(stream, colour)):
        print(safely_shown(line, coloured=True), file=stream)


def lines(report: Report, width: int = 100, paint: Paint | None = None) -> list[str]:
    """Return the lines of a diagnosis."""
    paint = paint or Paint(None, colour=False)
    origin = report.origin
    badge = verdict_badge(report, paint)
    if origin is None:
        return [badge, "", *_wrapped("", report.reason, width), *_compiled(report, width)]
    rank = f", rank {origin.rank}" if origin.rank else ""
    call = paint(origin.call, "1")
    if origin.module and origin.module not in origin.call:
        call = say("{0} in {1}", call, origin.module)
    shown = _unknowable(report, width)
    shown += [f"{badge} {say('at {0}, step {1}', call, origin.step)}{rank}", ""]
    shown += _wrapped("", _without_place(origin), width)
    if origin.source is not None:
        shown.append(f"  {paint(f'{origin.source.file}:{origin.source.line}', '36')}")
        if origin.source.code:
            shown.append(f"    {origin.source.code.strip()[: width - 4]}")
    shown += ["", *_about(origin, width, paint), *_proof(origin, width)]
    return shown + _compiled(report, width) + _rivals(report, width)


def _without_place(origin: Origin) -> str:
    """Return the reason without the file and line at its end, which are shown on a line of their own."""
    if origin.source is None:
        return origin.reason
    return re.sub(rf"; [^;]*:{origin.source.line}$", "", origin.reason)


def _was_replayed(origin: Origin) -> bool:
    return "could_not" not in (origin.details.get("diagnosis") or {})


def _unknowable(report: Report, width: int) -> list[str]:
    """Return what the diagnosis cannot know, and the commands that would tell, each on a line of its own."""
    found = report.details.get("unknowable")
    if not isinstance(found, dict):
        return []
    return [*wrapped(translated(str(found["sentence"])), width), *(f"  {command}" for command in found["commands"]), ""]


def _compiled(report: Report, width: int) -> list[str]:
    """Return what was found inside compiled regions, and what could not be looked at."""
    shown: list[str] = []
    for found in (report.details.get("compiled") or {}).values():
        told = f"{len(found['regions'])} regions, {found['kernels']} kernels held against float64"
        shown += _wrapped("compiled", told, width)
        for sentence in found["found"][:_MOST_COMPILED]:
            shown += _wrapped("", sentence, width, hang=True)
        for lack in found["lacks"][:_MOST_COMPILED]:
            shown += _wrapped("", f"not examined: {lack}", width, hang=True)
    return ["", *shown] if shown else []


def _about(origin: Origin, width: int, paint: Paint) -> list[str]:
    shown = _wrapped("mechanism", f"{say(origin.mechanism)}: {translated(MEANING[origin.mechanism])}", width)
    tried = (origin.details.get("diagnosis") or {}).get("tried")
    if origin.repair is None and (origin.mechanism in _NOTHING_TO_REPAIR or not _was_replayed(origin)):
        return shown
    repair = _wrapped("repair", origin.repair or "no hypothesis reproduces the reference", width)
    repair += _wrapped("", str(tried["sentence"]), width, hang=True) if origin.repair and tried else []
    return shown + ([paint(line, "32;1") for line in repair] if origin.repair else repair)


def _proof(origin: Origin, width: int) -> list[str]:
    """Return the figures, the replayed calls, and the reasons why others could not be replayed."""
    details = origin.details.get("diagnosis") or {}
    lift = _evidence(details, origin.mechanism)
    shown = _bars(lift, origin.mechanism, width)
    shown += _device(lift, details["device"], width) if details.get("device") else _own_errors(lift, width)
    if isinstance(details.get("target"), list) and (details["target"] or details.get("reference")):
        shown += _wrapped("replayed", _calls(details["target"], details.get("reference") or []), width)
    shown += _unit(details.get("unit") or {}, width)
    for key, label in (("note", "note"), ("could_not", "could not")):
        if details.get(key):
            shown += _wrapped(label, str(details[key]), width)
    if carried := origin.details.get("carried"):
        shown += _wrapped("the run" if "places" in carried else "the loss", str(carried["sentence"]), width)
    for proof in origin.details.get("proof") or []:
        shown += _wrapped("proof", str(proof["sentence"]), width)
    for item in (details.get("not_replayed") or [])[:3]:
        shown += _wrapped("could not", f"replay {item}", width)
    if details.get("next"):
        shown += _wrapped("next", str(details["next"]), width)
    return ["", *shown] if shown else []


def _evidence(details: JsonObject, mechanism: str) -> JsonObject:
    """Return the lift test that shows the mechanism: that of the calls, or that of the module around them."""
    lifts = [lift for lift in (details.get("lift"), (details.get("unit") or {}).get("lift")) if lift]
    shows = (lift for lift in lifts if lift.get("mechanism", mechanism) == mechanism)
    return next(shows, lifts[0] if lifts else {})


def _remark(lift: JsonObject, mechanism: str) -> str:
    """Return what the figures of a lift test show, where they show the mechanism."""
    native, lifted = lift.get("native") or 0.0, lift.get("float64") or 0.0
    told = lift.get("mechanism", mechanism) == mechanism and (
        lifted > 0 if mechanism == "semantic" else lifted < native
    )
    return translated(_SHOWS.get(mechanism, "")) if told else ""


def _bars(lift: JsonObject, mechanism: str, width: int) -> list[str]:
    """Return the lift test as bars on a logarithmic scale."""
    if lift.get("float64") is None:
        return []
    rows = (("as recorded", "native"), ("float32", "float32"), ("float64", "float64"), ("rounding", "floor"))
    longest = min(_BAR, width - _LABEL - 24)
    bars = []
    for number, (label, key) in enumerate(rows):
        value = lift.get(key)
        shown = f"{padded(say(label), 12)} {_number(value):>7}  {'━' * _length(value, longest)}"
        row = f"  {padded(say('lift') if not number else '', _LABEL)}{shown.rstrip()}"
        told = _remark(lift, mechanism) if key == "float64" else ""
        bars.append(f"{row}  {told}" if told and columns(row) + columns(told) + 2 <= width else row)
    return bars


def _length(value: object, longest: int) -> int:
    """Return the length of a bar: none for 1e-17, the longest for 1."""
    if not isinstance(value, (int, float)) or value <= 0 or value != value:
        return 0
    return max(1, min(longest, round(longest * (17 + math.log10(min(value, 1.0))) / 17)))


def _own_errors(lift: JsonObject, width: int) -> list[str]:
    """Return how far each recorded output is from float64, made from its own recorded inputs."""
    sides = []
    for side in ("target", "reference"):
        if lift.get(f"{side}_error") is not None:
            sides.append(f"{_side(lift, side)} {_number(lift[f'{side}_error'])}, {_as_recorded(lift, side)}")
    return _wrapped("own error", f"against a float64 replay: {'; '.join(sides)}", width) if sides else []


def _as_recorded(lift: JsonObject, side: str) -> str:
    """Return in words whether a side's recorded output is what its recorded inputs give."""
    state = str(lift.get(f"{side}_recorded", "not reproduced"))
    return "reproduced" if lift.get(f"{side}_reproduced") and state != "beyond rounding" else state


def _side(lift: JsonObject, side: str) -> str:
    device = lift.get(f"{side}_device")
    return f"{side}, {device}:" if device else side


def _device(lift: JsonObject, found: JsonObject, width: int) -> list[str]:
    """Return what is known of the fault of a device."""
    off = found["side"]
    sides = [f"{_side(lift, off)} off by {_number(found['error'])}"]
    other = "reference" if off == "target" else "target"
    if lift.get(f"{other}_error") is not None:
        sides.append(f"{_side(lift, other)} {_number(lift[f'{other}_error'])}")
    told = f"{'; '.join(sides)}; the operator's own error here is {_number(found['operator_error'])}"
    shown = _wrapped("own error", told, width)
    for key, label in (
        ("elements", "elements"),
        ("rounded_inputs", "as if"),
        ("again", "again"),
        ("made_by", "made by"),
        ("note", "note"),
    ):
        if found.get(key):
            shown += _wrapped(label, str(found[key]), width)
    return shown


def _unit(unit: JsonObject, width: int) -> list[str]:
    """Return the figures of the module, replayed as a unit."""
    if not unit:
        return []
    if "could_not" in unit:
        return _wrapped("as a unit", f"not replayed: {unit['could_not']}", width)
    inside = f"; inside it {unit['inside']['call']}" if unit.get("inside") else ""
    lift = unit["lift"]
    far = f"off by {_number(lift.get('native'))}, in float64 {_number(lift.get('float64'))}"
    told = far if lift.get("native") or lift.get("float64") else "right for what it was given"
    return _wrapped("as a unit", f"{unit['call']}, {unit['how']}: {told}{inside}", width)


def labelled(label: str, text: str) -> str:
    """Return a text under a label, as the lines of a diagnosis have them."""
    return "\n".join(_wrapped(label, text, _width()))


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 40)).columns, 60), 140)


def _rivals(report: Report, width: int) -> list[str]:
    """Return the other suspects, a line each, except those that the origin's repair repairs too."""
    assert report.origin is not None
    shown: list[str] = []
    for rival in report.suspects[1:]:
        if "diagnosis" not in rival.details or (rival.repair is not None and rival.repair == report.origin.repair):
            continue
        told = f"{rival.call}, step {rival.step}: {rival.mechanism}; {rival.repair or _without_place(rival)}"
        shown += _wrapped("also" if not shown else "", told, width, hang=True)
        if len(shown) > 6:
            break
    return ["", *shown] if shown else []


def _calls(target: list[str], reference: list[str]) -> str:
    if target == reference:
        return _few(target)
    return f"{_few(target) or 'nothing'} against {_few(reference) or 'nothing'}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return "0" if value == 0 else f"{float(value):.1e}"


def _wrapped(label: str, text: str, width: int, hang: bool = False) -> list[str]:
    room = f"  {padded(say(label), _LABEL)}" if label or hang else "  "
    return wrapped(translated(text), width, room, " " * columns(room)) or [room.rstrip()]
