"""How the ranks of a torch job are arranged, as far as torch itself says: for the manifest.

{"backend": "gloo",
 "mesh": [{"names": ["dp", "tp"], "shape": [2, 2], "ranks": [[0, 1], [2, 3]]}],
 "groups": [{"name": "mesh_tp", "ranks": [0, 1]}],
 "schedule": {"name": "ScheduleGPipe", "micro_batches": 4, "stages": 2}}

Groups are those of the rank that wrote the manifest, but for the group of all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

from numscope.core.json_value import JsonObject


def arrangement(modules: Iterable[torch.nn.Module], schedule: JsonObject) -> JsonObject:
    """Return what is known now; nothing of a job of one process, or where torch does not say."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    found: JsonObject = {"backend": str(distributed.get_backend())}
    for name, facts in (("mesh", _meshes(modules)), ("groups", _groups()), ("schedule", schedule)):
        if facts:
            found[name] = facts
    return found


def _meshes(modules: Iterable[torch.nn.Module]) -> list[JsonObject]:
    """Return the meshes over which parameters are cut, each once."""
    if "torch.distributed.tensor" not in sys.modules:
        return []
    found: list[JsonObject] = []
    for module in modules:
        for parameter in module._parameters.values():
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is None:
                continue
            names = [str(name) for name in mesh.mesh_dim_names or ()]
            facts = {"names": names, "shape": list(mesh.mesh.shape), "ranks": mesh.mesh.tolist()}
            if facts not in found:
                found.append(facts)
    return found


def _groups() -> list[JsonObject]:
    """Return the groups of some of the ranks that this process is in."""
    from torch.distributed import distributed_c10d

    world = getattr(distributed_c10d, "_world", None)
    found: list[JsonObject] = []
    for group, members in dict(getattr(world, "pg_group_ranks", {})).items():
        ranks = sorted(members)
        facts = {"name": str(getattr(group, "group_desc", "") or ""), "ranks": ranks}
        if 1 < len(ranks) < torch.distributed.get_world_size() and facts not in found:
            found.append(facts)
    return found
