"""What is fuzzed: a good file, and the function that reads it."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path

import torch

import numscope as ns
from numscope.compare.align.map_file import load_map
from numscope.compare.thresholds import load_thresholds
from numscope.compat.hooktools import options as hooktools_options
from numscope.compat.msprobe import options as msprobe_options
from numscope.core.settings import CaptureSettings, bytes_of, from_text, numbers, read_file
from numscope.store.formats import torch_file
from numscope.store.shards import Shard
from tests.fuzz.dumps import DUMPS, torch_files
from tests.fuzz.target import Target, texts, written
from tests.fuzz.weight_files import WEIGHT_FILES


@lru_cache(maxsize=1)
def a_run(folder: Path) -> Path:
    """Return a run of a small model, without checksums: who wants to deceive writes true ones."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    path = folder / "good"
    with ns.capture(path, model, keep="tensors", overwrite=True) as cap:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            cap.step()
    manifest = json.loads((path / "manifest.json").read_bytes())
    for name in ("checksum", "checksums", "id"):
        manifest.pop(name, None)
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def file_of_a_run(name: str) -> Target:
    def good(folder: Path) -> list[bytes]:
        return [(a_run(folder) / name).read_bytes()]

    def read(content: bytes, folder: Path) -> object:
        shutil.copytree(a_run(folder.parent / "runs"), folder / "run")
        (folder / "run" / name).write_bytes(content)
        run = ns.open_run(folder / "run")
        read = [run.calls, run.tensors, run.skipped(), run.faults(), run.ends(), run.incomplete]
        for step in run.steps:
            for row in run.step_tables(step, 0).tensors.to_pylist():
                if row.get("shard") is not None:
                    read.append(run.array(0, row["shard"], row["key"], row["dtype"], tuple(row["shape"])))
        return read

    return Target(f"run/{name}", good, read)


MAP = '[[call]]\ntarget = "a.*"\nreference = "b.*"\n[[module]]\ntarget = "x"\nreference = "y"\n[[layout]]\ntarget = "w"\nreference = "v"\ntranspose = [1, 0]\n'
SETTINGS = '[capture]\nlevel = "mix"\nsteps = "4-10:2"\ntensors = ["a*"]\nmax_bytes = "20GB"\nsample = [1, 2, 3]\nbackward = true\n'
HOOKTOOLS = "task: tracer\nlevel: 1\nsteps: [1, 2]\nmodules:\n  - a\n  - b\n"


def setting(content: bytes, folder: Path) -> object:
    name, _, text = content.decode("utf-8", "replace").partition("=")
    known = {"steps", "ranks", "sample", "tensors", "max_bytes", "max_tensors", "backward", "level", "keep_last"}
    value = from_text(name if name in known else "steps", text)
    return CaptureSettings.of(**{name if name in known else "steps": value}), numbers(text, "steps"), bytes_of(text)


def settings_file(content: bytes, folder: Path) -> object:
    return CaptureSettings.of(**read_file(written(folder, "settings.toml", content)))


TARGETS = [
    *DUMPS,
    *WEIGHT_FILES,
    Target("torch file", torch_files, lambda content, folder: torch_file.load(written(folder, "a.pt", content))),
    Target(
        "shard",
        lambda folder: [(next((a_run(folder) / "rank0").glob("*.safetensors"))).read_bytes()],
        lambda content, folder: [
            shard.array(key, "float32", None)
            for shard in [Shard(written(folder, "a.safetensors", content))]
            for key in shard.entries
        ],
    ),
    Target("map", texts(MAP), lambda content, folder: load_map(written(folder, "map.toml", content))),
    Target(
        "thresholds",
        texts('[default]\nrelative = 1e-3\n[dtype.bfloat16]\nrelative = 1e-2\n["Functional.gelu*"]\nabsolute = 1\n'),
        lambda content, folder: load_thresholds(written(folder, "thresholds.toml", content)),
    ),
    Target("settings file", texts(SETTINGS), settings_file),
    Target(
        "setting", texts("steps=4-10:2", "max_bytes=1.5 GB", "sample=1,2,3", "tensors=a*,/b/", "backward=yes"), setting
    ),
    Target(
        "hooktools settings",
        texts(HOOKTOOLS),
        lambda content, folder: hooktools_options.load(written(folder, "tracer.yaml", content)),
    ),
    Target(
        "msprobe settings",
        texts(
            '{"task": "statistics", "step": [0, "2-4"], "rank": [], "level": "L1", "statistics": {"scope": [], "list": []}}'
        ),
        lambda content, folder: msprobe_options.read(written(folder, "config.json", content), None, folder, None, None),
    ),
    *map(
        file_of_a_run,
        (
            "manifest.json",
            "rank0/rank.json",
            "rank0/steps.jsonl",
            "rank0/000000/calls.parquet",
            "rank0/000000/slots.parquet",
            "rank0/000000/tensors.parquet",
            "rank0/000000.safetensors",
        ),
    ),
]
