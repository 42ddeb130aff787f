"""Files that other frameworks wrote, kept in real_weights/ with the scripts that made them: flax, orbax, Megatron-core."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import numscope as ns

HERE = Path(__file__).parent / "real_weights"


@pytest.fixture
def torch_like() -> dict[str, np.ndarray]:
    """The flax model as torch would name and lay it out."""
    words = {"kernel": "weight", "embedding": "weight", "scale": "weight"}
    out = {}
    for name, value in np.load(HERE / "flax.npz").items():
        stem, _, last = name.rpartition(".")
        out[f"{stem}.{words.get(last, last)}"] = np.ascontiguousarray(value.T) if last == "kernel" else value
    return out


@pytest.mark.parametrize("name", ["flax.msgpack", "orbax"])
def test_flax_and_orbax_against_torch(name: str, torch_like: dict[str, np.ndarray]) -> None:
    if name == "orbax":
        pytest.importorskip("tensorstore")
    answer = ns.weights(HERE / name, torch_like)
    assert answer.verdict == "equivalent"  # the head is in bfloat16
    assert not answer.missing
    assert not answer.extra  # the optimizer's state and the step are no weights
    relations = Counter(pair.relation for pair in answer.pairs)
    assert relations["transposed"] == 5
    assert relations["equal"] == 9
    torch_like["up_1.weight"][3] = 0
    assert [pair.fault for pair in ns.weights(HERE / name, torch_like).wrong] == ["slice"]


def test_orbax_is_what_flax_wrote() -> None:
    pytest.importorskip("tensorstore")
    answer = ns.weights(HERE / "orbax", HERE / "flax.msgpack")
    assert answer.verdict == "identical"
    assert len(answer.pairs) == 14


def test_a_step_of_a_checkpoint_manager_is_found(tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    shutil.copytree(HERE / "orbax", tmp_path / "7" / "default")
    shutil.copy(HERE / "orbax" / "_CHECKPOINT_METADATA", tmp_path / "7")
    assert ns.weights(tmp_path / "7", HERE / "flax.msgpack").verdict == "identical"


@pytest.mark.parametrize("damage", ["names a way out", "is no JSON", "has no store", "is cut short"])
def test_a_damaged_orbax_folder_is_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    folder = tmp_path / "orbax"
    shutil.copytree(HERE / "orbax", folder)
    metadata = folder / "_METADATA"
    if damage == "names a way out":
        metadata.write_text(metadata.read_text().replace('"up_0"', '"/../../x"'))
    elif damage == "is no JSON":
        metadata.write_text("{")
    elif damage == "has no store":
        shutil.rmtree(folder / "ocdbt.process_0")
    else:
        for file in (folder / "ocdbt.process_0" / "d").iterdir():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    # In a process of its own: tensorstore remembers what it has read of files with these names.
    command = [sys.executable, "-m", "numscope", "weights", str(folder), str(HERE / "flax.msgpack")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "fault in numscope" not in done.stderr


@pytest.mark.parametrize("name", ["torch_dist", "model_optim_rng.pt"])
def test_megatron_core_against_hugging_face(name: str) -> None:
    answer = ns.weights(HERE / name, HERE / "hugging_face.safetensors")
    assert answer.verdict == "identical"
    relations = Counter(pair.relation for pair in answer.pairs)
    assert relations == (
        {"split": 5, "equal": 3, "interleaved": 1}
        if name == "torch_dist"
        else {"equal": 11, "split": 2, "interleaved": 2}
    )
    back = ns.weights(HERE / "hugging_face.safetensors", HERE / name)
    assert back.verdict == "identical"
