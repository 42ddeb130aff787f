"""The settings, versions and chips in which two runs differ: known before any tensor is compared.

A setting of a device that a run did not use is absent there, so that a run on the CPU differs from one that multiplies
in TF32, and not from one that could have but did not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from numscope.core.operators import MULTIPLIES, operator
from numscope.core.report import Origin
from numscope.store.schema import TableRow

_Facts = Mapping[str, object]


@dataclass(frozen=True)
class SettingDifference:
    """A setting, a version or a chip that the two runs do not share; None where a run has no such setting."""

    name: str
    target: object
    reference: object

    def to_dict(self) -> TableRow:
        """Return the difference as JSON."""
        return {"name": self.name, "target": self.target, "reference": self.reference}

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.target)} against {_shown(self.reference)}"


@dataclass(frozen=True)
class _Effect:
    """A setting that makes some operators round more coarsely than the dtype of their tensors says."""

    setting: str
    operators: re.Pattern[str]
    dtype: str
    coarser: Mapping[object, float]  # value → how many times coarser than the dtype's own roundoff
    verb: str
    finer: object  # the value that does not


SEEDS = "seeds"
_UNSET = "none"  # what a precision says that nobody has set: an older torch has no such setting
_PRODUCTS = re.compile(
    r"linear|matmul|mm|bmm|addmm|baddbmm|addbmm|einsum|mv|addmv|tensordot|bilinear|Linear|\w*attention\w*"
)
_CUDNN = re.compile(r"conv\w*|Conv\w*|convolution\w*|_?cudnn_\w+|lstm|gru|rnn_\w+|LSTM|GRU|RNN")
_TF32 = 2.0**13  # 11 significant bits where float32 has 24
_LOWER: Mapping[object, float] = {"tf32": _TF32, "bf16": 2.0**16}
_EFFECTS = (
    _Effect("torch.backends.cuda.matmul.allow_tf32", _PRODUCTS, "float32", {True: _TF32}, "multiplies in TF32", False),
    _Effect(
        "torch.get_float32_matmul_precision()",
        _PRODUCTS,
        "float32",
        {"high": _TF32, "medium": 2.0**16},
        "multiplies float32 in a lower precision",
        "highest",
    ),
    _Effect("torch.backends.cudnn.allow_tf32", _CUDNN, "float32", {True: _TF32}, "convolves in TF32", False),
    # The same since torch 2.9: where a job uses these, the older ones above refuse to be read.
    _Effect("torch.backends.cuda.matmul.fp32_precision", _PRODUCTS, "float32", _LOWER, "multiplies in TF32", "ieee"),
    _Effect(
        "torch.backends.mkldnn.matmul.fp32_precision",
        _PRODUCTS,
        "float32",
        _LOWER,
        "multiplies float32 in a lower precision",
        "ieee",
    ),
    _Effect("torch.backends.cudnn.conv.fp32_precision", _CUDNN, "float32", _LOWER, "convolves in TF32", "ieee"),
    _Effect(
        "torch.backends.cuda.matmul.allow_fp16_accumulation",
        _PRODUCTS,
        "float16",
        {True: 64.0},
        "adds up products in float16",
        False,
    ),
)


def differences(target: _Facts, reference: _Facts) -> tuple[SettingDifference, ...]:
    """Return in what two manifests differ that can change numbers: settings first, then versions, chips and layout."""
    found: list[SettingDifference] = []
    if target.get("numerics") and reference.get("numerics"):  # a run of an older version, or of another tool, has none
        for group in ("settings", "versions", "hardware"):
            found += _differing(_group(target, group), _group(reference, group))
    found += _differing(_environment(target), _environment(reference))
    mine, theirs = _devices(target), _devices(reference)
    if mine and theirs and mine != theirs:
        found.append(SettingDifference("devices", mine, theirs))
    for name in ("framework", SEEDS, "world_size"):
        one, other = target.get(name), reference.get(name)
        if one is not None and other is not None and one != other:
            found.append(SettingDifference(name, one, other))
    return tuple(found)


def chips(*manifests: _Facts) -> frozenset[str]:
    """Return the names of the chips on which runs computed: that of the CPU where they used no other device."""
    found: set[str] = set()
    for manifest in manifests:
        devices = manifest.get("devices")
        used = {str(device).partition(":")[0] for device in devices} if isinstance(devices, list) else set()
        hardware = _group(manifest, "hardware").items()
        found |= {str(chip) for name, chip in hardware if name.partition(":")[0] in used}
    return frozenset(found)


def accelerators(*manifests: _Facts) -> frozenset[str]:
    """Return those of the chips that are no CPU: CPUs round alike."""
    cpus = {str(_group(manifest, "hardware").get("cpu")) for manifest in manifests}
    return chips(*manifests) - cpus


def may_explain(found: tuple[SettingDifference, ...]) -> bool:
    """Tell whether one of these differences is of a kind that explains origins."""
    return not {effect.setting for effect in _EFFECTS}.union((SEEDS,)).isdisjoint(_by_name(found))


def explained(origin: Origin, dtype: str, found: tuple[SettingDifference, ...]) -> Origin:
    """Return an origin with the setting that explains it, where one does: the mechanism and the line that repairs it."""
    seeds = _by_name(found).get(SEEDS)
    if seeds is not None and origin.details.get("random"):
        return replace(
            origin,
            reason=f"{origin.reason}; the seeds differ ({_shown(seeds.target)} against {_shown(seeds.reference)})",
            repair="the same seed in both: ns.seed_all(1234)",
            details={**origin.details, "setting": SEEDS},
        )
    effect = _effect(origin, dtype, found)
    if effect is None:
        return origin
    coarse_target = _by_name(found)[effect.setting].target in effect.coarser
    coarse, fine = ("target", "reference") if coarse_target else ("reference", "target")
    sentence = f"the {coarse} {effect.verb} ({effect.setting}), the {fine} in float32"
    repair = f"{effect.setting.removesuffix('()')} = {effect.finer!r} in the {coarse}"
    if effect.setting.endswith("()"):
        repair = f"torch.set_float32_matmul_precision({effect.finer!r}) in the {coarse}"
    return replace(
        origin,
        mechanism="precision",
        reason=f"{origin.reason}; {sentence}",
        repair=repair,
        details={**origin.details, "setting": effect.setting},
    )


def _effect(origin: Origin, dtype: str, found: tuple[SettingDifference, ...]) -> _Effect | None:
    """Return the setting whose coarser rounding is enough for the error of an origin."""
    if origin.relative is None or origin.expected is None or origin.mechanism not in ("unknown", "precision"):
        return None
    known = _by_name(found)
    name = origin.call.split(".")[-3 if origin.kind == "module" else 1]
    for effect in _EFFECTS:
        setting = known.get(effect.setting)
        if setting is None or dtype != effect.dtype or not _computes(effect, name):
            continue
        times = [effect.coarser[value] for value in (setting.target, setting.reference) if value in effect.coarser]
        if len(times) == 1 and origin.relative <= origin.expected * times[0]:
            return effect
    return None


def _computes(effect: _Effect, name: str) -> bool:
    return bool(effect.operators.fullmatch(name)) or (
        effect.operators is _PRODUCTS and operator(name).rounding in MULTIPLIES and not _CUDNN.fullmatch(name)
    )


def _by_name(found: tuple[SettingDifference, ...]) -> dict[str, SettingDifference]:
    return {one.name: one for one in found}


def _group(manifest: _Facts, group: str) -> _Facts:
    numerics = manifest.get("numerics")
    facts = numerics.get(group) if isinstance(numerics, Mapping) else None
    return facts if isinstance(facts, Mapping) else {}


def _devices(manifest: _Facts) -> str:
    """Return the devices that a job used, without their numbers."""
    devices = manifest.get("devices")
    named = {re.sub(r":\d+", "", str(device)) for device in devices} if isinstance(devices, list) else set()
    return ", ".join(sorted(named))


_NO_NUMBERS = re.compile(
    r".*(RANK|_DIR|_HOME|_PATH|_ROOT|_PORT|_ADDR|_ID|_CACHE\w*|WORLD_SIZE|NUMSCOPE\w*)|PYTHONHASHSEED"
)


def _environment(manifest: _Facts) -> dict[str, object]:
    """Return the variables that can change numbers: not where things lie, nor which process this is."""
    variables = manifest.get("environment")
    if not isinstance(variables, Mapping):
        return {}
    return {f"environment: {name}": value for name, value in variables.items() if not _NO_NUMBERS.fullmatch(name)}


def _differing(mine: _Facts, theirs: _Facts) -> list[SettingDifference]:
    names = dict.fromkeys((*mine, *theirs))
    return [
        SettingDifference(name, mine.get(name), theirs.get(name))
        for name in names
        if _told(mine.get(name)) != _told(theirs.get(name))
    ]


def _told(value: object) -> object:
    return None if value == _UNSET else value


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)
