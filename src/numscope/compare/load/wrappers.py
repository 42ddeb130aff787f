"""Removes the parts that wrappers add to module paths.

DistributedDataParallel adds `module.`, torch.compile `_orig_mod.`, FSDP `_fsdp_wrapped_module.`, activation
checkpointing `_checkpoint_wrapped_module.`, PEFT `base_model.model.` and `base_layer`. A part is dropped only where
it is unambiguous: `module` at the front of a path and only if every path of that run starts with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ANYWHERE = ("_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module", "_flat_param", "_ddp")
_PARTS = re.compile(r"(?:^|(?<=\.))(?:" + "|".join(_ANYWHERE) + r")(?:\.|$)")
_FRONTS = ("module", "base_model.model", "_layers")

WRAPPER_CLASSES = frozenset(
    {
        "DistributedDataParallel",
        "DataParallel",
        "FullyShardedDataParallel",
        "FlattenParamsWrapper",
        "OptimizedModule",
        "CheckpointWrapper",
        "OffloadWrapper",
        "PeftModel",
        "PeftModelForCausalLM",
        "LoraModel",
    }
)


def _drop_parts(path: str) -> str:
    return _PARTS.sub("", path).rstrip(".")


def normalise(paths: Iterable[str]) -> dict[str, str]:
    """Return each path of a run without the parts that wrappers add."""
    distinct = list(dict.fromkeys(paths))
    plain = {path: path for path in distinct}
    everything = "\n".join((*distinct, ""))
    if ".\n" in everything or any(part in everything for part in _ANYWHERE):
        plain = {path: _drop_parts(path) for path in distinct}
    changed = True
    while changed:
        changed = False
        for front in _FRONTS:
            inner = [path for path in plain.values() if path]
            # The wrapper's own call has the empty path (or the front's first part); everything else lies below it.
            if inner and all(path == front or path.startswith(front + ".") or front.startswith(path) for path in inner):
                below = {key: _cut(path, front) for key, path in plain.items()}
                if below != plain:
                    plain, changed = below, True
    return plain


def _cut(path: str, front: str) -> str:
    if path == front or front.startswith(path + "."):
        return ""
    return path[len(front) + 1 :] if path.startswith(front + ".") else path
