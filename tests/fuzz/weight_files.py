"""Files of weights of every kind that `numscope weights` reads, and its map file."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import gguf
import msgpack
import numpy as np
import torch
from safetensors.torch import save
from torch.distributed.checkpoint import state_dict_saver

from numscope.weights.matching.map_file import load_map
from numscope.weights.sources import fingerprint_file, open_weights
from tests.fuzz.target import Target, texts, written


def all_elements(path: Path) -> object:
    """Read all elements of a file or a folder of weights."""
    read = []
    for tensor in open_weights(path):
        rows = 1
        for size in tensor.shape[:-1]:
            rows *= size
        if tensor.read is not None:
            read.append(tensor.read(0, rows))
    return read


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a.weight": torch.randn(4, 3), "a.bias": torch.zeros(4), "b": torch.ones(2, 3, dtype=torch.bfloat16)}


def arrays() -> dict[str, np.ndarray]:
    return {name: value.float().numpy() for name, value in state().items()}


def safetensors_file(folder: Path) -> list[bytes]:
    return [bytes(save(state()))]


def torch_checkpoint(folder: Path) -> list[bytes]:
    stream = io.BytesIO()
    torch.save({"model": state(), "step": 3}, stream)
    return [stream.getvalue()]


def archive(folder: Path) -> list[bytes]:
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, **arrays())
    np.savez_compressed(packed, **arrays())
    return [plain.getvalue(), packed.getvalue()]


def gguf_file(folder: Path) -> list[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fuzzed.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("output.weight", np.ones((4, 32), np.float32))
    codes = gguf.quants.quantize(np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.attn_q.weight", codes, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [path.read_bytes()]


def msgpack_file(folder: Path) -> list[bytes]:
    def packed(array: np.ndarray) -> msgpack.ExtType:
        return msgpack.ExtType(1, msgpack.packb((array.shape, array.dtype.name, array.tobytes())))

    halves = {"0": packed(np.ones(2, np.float32)), "1": packed(np.ones(2, np.float32))}
    chunked = {"__msgpack_chunked_array__": True, "shape": {"0": 2, "1": 2}, "chunks": halves}
    return [msgpack.packb({"params": {"dense": {"kernel": packed(np.ones((2, 3), np.float32))}, "big": chunked}})]


def paddle_file(folder: Path) -> list[bytes]:
    return [pickle.dumps({**arrays(), "StructuredToParameterName@@": {"a": "b"}}, protocol=4)]


def fingerprints(folder: Path) -> list[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    source, path = folder / "measured.safetensors", folder / "measured.weights"
    source.write_bytes(safetensors_file(folder)[0])
    fingerprint_file.write(path, open_weights(source), lambda tensor: None)
    return [path.read_bytes()]


def index(folder: Path) -> list[bytes]:
    whole = {"metadata": {"total_size": 76}, "weight_map": dict.fromkeys(state(), "a-00001-of-00001.safetensors")}
    return [json.dumps(whole).encode()]


def by_index(content: bytes, folder: Path) -> object:
    written(folder, "a-00001-of-00001.safetensors", safetensors_file(folder)[0])
    return all_elements(written(folder, "a.safetensors.index.json", content))


@lru_cache(maxsize=1)
def distributed(folder: Path) -> Path:
    with warnings.catch_warnings():  # it says that there is one process
        warnings.simplefilter("ignore")
        state_dict_saver.save(state(), checkpoint_id=folder / "distributed", no_dist=True)
    return folder / "distributed"


def distributed_file(name: str) -> Target:
    def read(content: bytes, folder: Path) -> object:
        shutil.copytree(distributed(folder.parent / "runs"), folder / "checkpoint")
        (folder / "checkpoint" / name).write_bytes(content)
        return all_elements(folder / "checkpoint")

    return Target(f"weights, distributed {name}", lambda folder: [(distributed(folder) / name).read_bytes()], read)


def file_of_weights(suffix: str, good: Callable[[Path], list[bytes]]) -> Target:
    return Target(
        f"weights {suffix}", good, lambda content, folder: all_elements(written(folder, f"a{suffix}", content))
    )


WEIGHT_FILES = [
    file_of_weights(".safetensors", safetensors_file),
    file_of_weights(".pt", torch_checkpoint),
    file_of_weights(".npz", archive),
    file_of_weights(".gguf", gguf_file),
    file_of_weights(".msgpack", msgpack_file),
    file_of_weights(".pdparams", paddle_file),
    file_of_weights(".weights", fingerprints),
    Target("weights index", index, by_index),
    distributed_file(".metadata"),
    distributed_file("__0_0.distcp"),
    Target(
        "weights map",
        texts('[[pair]]\na = ["decoder.*.qkv"]\nb = ["layers.*.q", "layers.*.k"]\n[[pair]]\na = "x"\nb = "y"\n'),
        lambda content, folder: load_map(written(folder, "map.toml", content)),
    ),
]
