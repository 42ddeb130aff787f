"""Opens a set of weights: one file per format, each a function that yields tensors; here it is chosen which."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from numscope.core.errors import RunError
from numscope.store.reader import Run
from numscope.store.remote.copies import file_system, is_url
from numscope.weights.sources.files import Place, decoding
from numscope.weights.tensor import Tensor, unique

_ZIP = b"PK\x03\x04"
_FILES = (".safetensors", ".gguf", ".npz", ".pdparams", ".msgpack", ".bin", ".pt", ".pth", ".ckpt")
# What lies beside weights in a folder, and is none where there are others.
_BESIDE = ("optimizer", "scheduler", "training_args", "rng_state", "scaler", "adapter_model", "tokenizer")

Source = str | os.PathLike[str] | Run | object
Reader = Callable[[Path], Iterator[Tensor]]


def open_weights(source: Source) -> list[Tensor]:
    """Return the tensors of a file, a folder, a run, an address or a model; their elements are read when asked for."""
    from numscope.weights.sources import live, run

    if isinstance(source, Run):
        return unique(run.read(source), source.path)
    if not isinstance(source, (str, os.PathLike)):
        if not live.is_model(source):
            raise RunError(f"a {type(source).__name__} is no model, mapping of names to arrays, run or path")
        return _some(unique(live.read(source), type(source).__name__), type(source).__name__)
    if is_url(source):
        address = os.fspath(source)
        if urlsplit(address).scheme != "file":
            return _some(unique(_of_address(address), address), address)
        source = unquote(urlsplit(address).path)
    path = Path(source)
    if not path.exists():
        raise RunError(f"{path} is not there: give a file or folder of weights, or a run")
    return _some(unique(_of_path(path), path), path)


def _some(tensors: list[Tensor], where: object) -> list[Tensor]:
    if not tensors:
        raise RunError(f"{where} has no tensors")
    return tensors


def _of_path(path: Path) -> Iterator[Tensor]:
    from numscope.weights.sources import orbax_folder, run, safetensors_file, torch_checkpoint

    if path.is_file():
        if path.name.endswith(".index.json"):
            return _of_files(_shards(path))
        return _read(path)
    if (path / "manifest.json").is_file():
        return run.read(path)
    if (path / ".metadata").is_file():
        return _checked(path, torch_checkpoint.read_distributed(path))
    if orbax_folder.is_orbax(path):
        return _checked(path, orbax_folder.read(path))
    indices = sorted(path.glob("*.index.json"), key=lambda index: "safetensors" not in index.name)
    if indices:
        return _of_files(safetensors_file.shards(indices[0]))
    for beside in (False, True):
        for suffix in _FILES:
            found = sorted(one for one in path.glob(f"*{suffix}") if one.name.startswith(_BESIDE) == beside)
            if found:
                return _of_files(found)
    ranks = sorted(one for one in path.glob("*/*.pt") if one.parent.name.startswith("mp_rank"))
    if ranks:
        return _of_ranks(ranks)
    present = ", ".join(sorted(one.name for one in path.iterdir())[:5]) or "nothing"
    raise RunError(f"{path} has no weights that numscope can read (found: {present}): name the file")


def _of_address(address: str) -> Iterator[Tensor]:
    """Yield the tensors of a run, a file, or a folder of safetensors at an address; files are read part by part."""
    from pyarrow.fs import FileSelector, FileType

    from numscope.weights.sources import fingerprint_file, gguf_file, run, safetensors_file

    readers = {
        ".safetensors": safetensors_file.read,
        ".gguf": gguf_file.read,
        fingerprint_file.SUFFIX: fingerprint_file.read,
    }
    _, suffix = os.path.splitext(urlsplit(address).path)
    if suffix in readers:
        return _checked(address, readers[suffix](address))
    if suffix in _FILES:
        raise RunError(
            f"{address}: {suffix} is read from this machine alone: copy it, or name a safetensors or GGUF file"
        )
    files, root = file_system(address)
    try:
        infos = files.get_file_info(FileSelector(root))
    except OSError as error:
        raise RunError(f"{address} cannot be read ({error}): check the address and your credentials") from None
    names = sorted(os.path.basename(info.path) for info in infos if info.type == FileType.File)
    if "manifest.json" in names:
        return run.read(address)
    shards = [name for name in names if name.endswith(".safetensors")]
    parts = urlsplit(address)
    urls = [urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}")) for name in shards]
    return _checked(address, (tensor for url in urls for tensor in safetensors_file.read(url)))


def _shards(index: Path) -> list[Path]:
    from numscope.weights.sources import safetensors_file

    return safetensors_file.shards(index)


def _of_files(files: list[Path]) -> Iterator[Tensor]:
    """Yield the tensors of the files of one set; where two files have the same names, each file's begin with its own."""
    parts = [list(_read(file)) for file in files]
    names = [tensor.name for part in parts for tensor in part]
    if len(set(names)) == len(names):
        for part in parts:
            yield from part
    else:
        yield from _prefixed([file.stem for file in files], parts)


def _of_ranks(files: list[Path]) -> Iterator[Tensor]:
    return _prefixed([file.parent.name for file in files], [list(_read(file)) for file in files])


def _prefixed(prefixes: list[str], parts: list[list[Tensor]]) -> Iterator[Tensor]:
    from dataclasses import replace

    for prefix, part in zip(prefixes, parts, strict=True):
        for tensor in part:
            yield replace(tensor, name=f"{prefix}:{tensor.name}")


def _read(path: Path) -> Iterator[Tensor]:
    return _checked(path, _reader(path)(path))


def _checked(path: Place, tensors: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield tensors; an error of the libraries that decode a damaged file names the file."""
    with decoding(path):
        yield from tensors


def _reader(path: Path) -> Reader:
    """Return what reads a file: by what it begins with, and by its name where that does not say."""
    from numscope.weights.sources import (
        fingerprint_file,
        flax_file,
        gguf_file,
        npz_file,
        paddle_file,
        safetensors_file,
        torch_checkpoint,
    )

    with path.open("rb") as file:
        head = file.read(16)
    if path.suffix == fingerprint_file.SUFFIX:
        return fingerprint_file.read
    if head[:4] == gguf_file.MAGIC:
        return gguf_file.read
    if head[:4] == _ZIP:
        return npz_file.read if path.suffix == ".npz" else torch_checkpoint.read
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return safetensors_file.read
    if path.suffix == ".msgpack":
        return flax_file.read
    if head[:1] == b"\x80":
        if path.suffix == ".pdparams":
            return paddle_file.read
        raise RunError(f"{path} is a pickle that neither torch since 1.6 nor Paddle wrote: {torch_checkpoint.CURE}")
    raise RunError(
        f"{path} is no file of weights that numscope knows (safetensors, torch, GGUF, npz, pdparams, msgpack)"
    )
