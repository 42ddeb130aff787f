"""Packs a recorded corpus into a few archives without any path of the machine that recorded it, and unpacks them."""

from __future__ import annotations

import json
import re
import tarfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.devices.planted import FAULTS
from bench.devices.public import PUBLIC

_KEPT = (
    "format",
    "created",
    "numscope",
    "framework",
    "framework_version",
    "python",
    "platform",
    "devices",
    "world_size",
)
_ROOTS = re.compile(r"^.*?(?=site-packages/|dist-packages/|torch/|transformers/|bench/devices/)")


def pack(folder: Path, out: Path) -> None:
    """Write an archive per pair of models."""
    out.mkdir(parents=True, exist_ok=True)
    public = list(PUBLIC)
    groups = [*zip(public[::2], public[1::2]), *((family,) for family in FAULTS)]
    with ProcessPoolExecutor(8) as pool:
        list(pool.map(_pack, groups, [folder] * len(groups), [out] * len(groups)))


def unpacked(recorded: Path, temporary: Path) -> Path:
    """Return a folder of runs: the recorded one, or where its archives are unpacked."""
    if not any(recorded.glob("*.tar.xz")):
        return recorded
    unpack(recorded, temporary)
    return temporary


def unpack(archives: Path, folder: Path) -> None:
    """Unpack every archive of a folder."""
    for archive in sorted(archives.glob("*.tar.xz")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def _pack(models: tuple[str, ...], folder: Path, out: Path) -> None:
    with tarfile.open(out / f"{'-'.join(models)}.tar.xz", "w:xz") as tar:
        for run in sorted(path for path in folder.iterdir() if path.name.split("-")[0] in models):
            _forget_places(run)
            for file in sorted(path for path in run.rglob("*") if path.is_file()):
                tar.add(file, file.relative_to(folder), filter=_nobodys)


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _forget_places(run: Path) -> None:
    """Drop what names the recording machine: arguments, commit, variables, the folders before a source file."""
    manifest = json.loads((run / "manifest.json").read_text())
    facts = {name: manifest[name] for name in _KEPT} | {
        "settings": manifest["settings"],
        "numerics": manifest["numerics"],
    }
    (run / "manifest.json").write_text(json.dumps(facts, indent=1))
    for file in run.rglob("*stacks.parquet"):
        table = pq.read_table(file)
        rows = table["frames"].to_pylist()
        for frames in rows:
            for frame in frames:
                frame["file"] = _ROOTS.sub("", frame["file"])
        at = table.schema.get_field_index("frames")
        table = table.set_column(at, table.schema.field(at), pa.array(rows, table.schema.field(at).type))
        pq.write_table(table, file, compression="zstd")
