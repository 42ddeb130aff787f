"""Reads torch's checkpoints (`.pt`, `.pth`, `.bin`) and the folders of torch.distributed.checkpoint without running code.

Megatron's `torch_dist` is such a folder. Only the places of the tensors are read at first; the elements are read from
the archive when they are asked for.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.core.untrusted import check_size
from numscope.store.formats.pickle_program import Callables, Name, Record, Rules, interpret
from numscope.store.formats.torch_file import STORAGES, is_storage_or_dtype
from numscope.weights.sources.files import File, check_shape, contiguous_strides, decoding, dtype_of, rows_of, strided
from numscope.weights.tensor import Read, Tensor, check_name

CURE = "save it as safetensors where you trust it"
_LOCAL = struct.Struct("<4s5H3L2H")  # the header before a member of a zip archive
_NESTED = 60  # containers in containers
_RECORDS = ("torch.distributed.", "megatron.core.dist_checkpointing.", "torch.distributed.checkpoint.")
_INERT = frozenset(
    {
        ("argparse", "Namespace"),
        ("torch.utils._config_module", "ConfigModule"),
        ("pathlib", "PosixPath"),
        ("pathlib", "Path"),
        ("pathlib._local", "PosixPath"),
        ("types", "SimpleNamespace"),
    }
)


@dataclass(frozen=True)
class _Storage:
    """A storage of a checkpoint: elements of one type, somewhere in a file."""

    file: File
    offset: int
    dtype: str
    count: int


@dataclass(frozen=True)
class _Stored:
    """A tensor of a checkpoint: a view of a storage."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def tensor(self, name: str) -> Tensor:
        key = self.storage.file.path, self.storage.offset, self.offset, self.shape, self.strides
        return Tensor(name, self.dtype, self.shape, self.reader(), storage=key)

    def reader(self) -> Read:
        storage = self.storage
        itemsize = dtype_of(self.dtype, storage.file.path).itemsize
        start = storage.offset + self.offset * itemsize
        if self.strides == contiguous_strides(self.shape) or math.prod(self.shape) <= 1:
            return storage.file.reader(start, self.dtype, self.shape)
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides)) + 1
        check_size(math.prod(self.shape) * itemsize, f"a tensor of {storage.file.path}")

        def read(first: int, last: int) -> AnyArray:
            flat = storage.file.reader(start, self.dtype, (reach,))(0, 1)[0]
            part = rows_of(strided(flat, 0, self.shape, self.strides))(first, last)
            return part.view(flat.dtype)

        return read


def read(path: Path) -> Iterator[Tensor]:
    """Yield the tensors of a checkpoint file; of one with optimizer states, the model's alone."""
    file = File(path)
    content = _load(file, 0, file.size)
    for name, stored in _tensors(_model(content)):
        yield stored.tensor(name)


def _model(content: object) -> object:
    """Return the part of a checkpoint that holds the model's tensors."""
    for key in ("state_dict", "model_state_dict", "model", "module", "network"):
        inner = content.get(key) if isinstance(content, dict) else None
        if inner is not None and next(_tensors(inner), None) is not None:
            return inner
    return content


def _tensors(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, _Stored]]:
    if depth > _NESTED:
        raise RunError("its containers are nested too deeply: it was not written by a training job")
    if isinstance(value, _Stored):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(item, f"{path}.{key}" if path else str(key), depth + 1)


def _load(file: File, start: int, length: int) -> object:
    """Return the content of an archive of torch.save that lies in a file."""
    try:
        archive = zipfile.ZipFile(_Part(file, start, length))
    except zipfile.BadZipFile:
        raise RunError(
            f"{file.path} is not a checkpoint in torch's zip format: save it again with torch 1.6 or later"
        ) from None
    with archive:
        infos = {check_name(info.filename, file.path): info for info in archive.infolist()}
        program = next((name for name in infos if Path(name).name == "data.pkl"), None)
        if program is None:
            raise RunError(f"{file.path} is a zip file, but none that torch.save wrote: it has no data.pkl")
        check_size(infos[program].file_size, file.path)
        root = program[: -len("data.pkl")]

        def storage(identity: object) -> _Storage:
            if not isinstance(identity, tuple) or len(identity) < 5:
                raise ValueError("a storage has no identity")
            kind, key = identity[1], identity[2]
            name = kind.name if isinstance(kind, Name) else ""
            info = infos.get(f"{root}data/{key}")
            if info is None or info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"there is no storage {key}")
            header = _LOCAL.unpack(file.bytes(start + info.header_offset, _LOCAL.size))
            offset = start + info.header_offset + _LOCAL.size + header[-2] + header[-1]
            if offset + info.file_size > file.size:
                raise ValueError(f"the storage {key} reaches beyond the file")
            dtype = STORAGES.get(name, "uint8")
            return _Storage(file, offset, dtype, info.file_size // dtype_of(dtype, file.path).itemsize)

        if infos[program].compress_type != zipfile.ZIP_STORED:
            raise RunError(f"{file.path} has a compressed data.pkl, which torch never writes: {CURE}")
        rules = Rules(_CALLABLE, is_storage_or_dtype, _is_record, storage, CURE)
        return interpret(archive.read(program), rules, file.path)


class _Part(io.RawIOBase):
    """A part of a file, as an archive in it is read."""

    def __init__(self, file: File, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        rest = max(0, self._length - self._at)
        count = rest if size < 0 else min(size, rest)
        content = bytes(self._file.bytes(self._start + self._at, count)) if count else b""
        self._at += len(content)
        return content


def _rebuild(storage: object, offset: object, shape: object, strides: object, *rest: object) -> _Stored:
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor has no storage")
    return _view(storage, storage.dtype, storage.count, offset, shape, strides)


def _rebuild_v3(storage: object, offset: object, shape: object, strides: object, *rest: object) -> _Stored:
    dtype = rest[2] if len(rest) > 2 else None
    if not isinstance(storage, _Storage) or not isinstance(dtype, Name):
        raise ValueError("a tensor has no storage")
    size = dtype_of(dtype.name, storage.file.path).itemsize
    return _view(storage, dtype.name, storage.count // size, offset, shape, strides)


def _view(storage: _Storage, dtype: str, count: int, offset: object, shape: object, strides: object) -> _Stored:
    sizes, steps = _numbers(shape), _numbers(strides)
    if not isinstance(offset, int) or len(sizes) != len(steps) or min((offset, *sizes, *steps)) < 0:
        raise ValueError("a tensor has a size below zero")
    check_shape(sizes, storage.file.path)
    reach = offset + 1 + sum((size - 1) * step for size, step in zip(sizes, steps)) if math.prod(sizes) else 0
    if reach > count:
        raise ValueError("a tensor reaches beyond its storage")
    return _Stored(storage, dtype, offset, sizes, steps)


def _numbers(value: object) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or not all(type(n) is int for n in value):
        raise ValueError("a shape is no list of numbers")
    return tuple(value)


def _first(value: object, *_: object) -> object:
    return value


def _ordered(*arguments: object) -> object:
    return OrderedDict()


_CALLABLE: Callables = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("collections", "OrderedDict"): _ordered,
    ("collections", "defaultdict"): _ordered,
    ("torch", "Size"): lambda *parts: tuple(parts[0]) if parts else (),
    ("torch", "device"): lambda *parts: ":".join(map(str, parts)),
    ("torch.serialization", "_get_layout"): _first,
}


def _is_record(module: str, name: str) -> bool:
    return module.startswith(_RECORDS) or (module, name) in _INERT


# --- torch.distributed.checkpoint, and torch_dist ----------------------------------------------------------------


@dataclass(frozen=True)
class _Chunk:
    """A part of a tensor: where it lies in the whole, and what holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: str
    start: int
    length: int


def read_distributed(folder: Path) -> Iterator[Tensor]:
    """Yield the tensors of a folder that torch.distributed.checkpoint wrote; of a whole job's, the model's alone."""
    metadata = File(folder / ".metadata")
    check_size(metadata.size, metadata.path)
    rules = Rules(_CALLABLE, is_storage_or_dtype, _is_record, None, CURE)
    content = interpret(bytes(metadata.bytes(0, metadata.size)), rules, metadata.path)
    if not isinstance(content, Record) or not isinstance(content.get("state_dict_metadata"), dict):
        raise metadata.damaged("it lists no tensors")
    places: dict[tuple[str, tuple[int, ...]], Record] = {}
    for index, info in (content.get("storage_data") or {}).items():
        if isinstance(index, Record) and isinstance(info, Record) and index.get("offset") is not None:
            places[str(index.get("fqn")), tuple(index.get("offset"))] = info
    files: dict[str, File] = {}
    entries = {name: entry for name, entry in content.get("state_dict_metadata").items() if isinstance(entry, Record)}
    optimizer = [name for name in entries if name.startswith(("optimizer.", "optim."))]
    for name, entry in entries.items():
        if entry.get("properties") is None or (name in optimizer and len(optimizer) < len(entries)):
            continue
        dtype, shape = _dtype(entry.get("properties")), _numbers(entry.get("size"))
        check_shape(shape, metadata.path)
        chunks = []
        for chunk in entry.get("chunks") or ():
            offsets, sizes = _numbers(chunk.get("offsets")), _numbers(chunk.get("sizes"))
            info = places.get((name, offsets))
            if info is None:
                raise metadata.damaged(f"it does not say where a part of {name} lies")
            path = check_name(str(info.get("relative_path")), metadata.path)
            chunks.append(_Chunk(offsets, sizes, path, int(info.get("offset")), int(info.get("length"))))
        yield Tensor(name, dtype, shape, _joined(folder, files, chunks, dtype, shape))


def _dtype(properties: object) -> str:
    state = properties.state if isinstance(properties, Record) else None
    named = state[0] if isinstance(state, tuple) and state else state.get("dtype") if isinstance(state, dict) else None
    if not isinstance(named, Name):
        raise ValueError("a tensor has no dtype")
    return named.name


def _joined(folder: Path, files: dict[str, File], chunks: list[_Chunk], dtype: str, shape: tuple[int, ...]) -> Read:
    """Return what reads rows of a tensor that lies in parts."""
    inner = math.prod(shape[1:-1]) if len(shape) > 1 else 1
    readers: dict[_Chunk, Read] = {}

    def reader(chunk: _Chunk) -> Read:
        if chunk not in readers:
            if chunk.path not in files:
                files[chunk.path] = File(folder / chunk.path)
            file = files[chunk.path]
            part = next((stored for _, stored in _tensors(_load(file, chunk.start, chunk.length))), None)
            if part is None or part.shape != chunk.sizes:
                raise file.damaged(f"at {chunk.start} it does not hold the part of {list(chunk.sizes)} that was listed")
            readers[chunk] = part.reader()
        return readers[chunk]

    def read(start: int, stop: int) -> AnyArray:
        with decoding(folder):
            return joined(start, stop)

    def joined(start: int, stop: int) -> AnyArray:
        if len(shape) < 2:
            first, last = 0, shape[0] if shape else 1
        else:
            first, last = start // inner, -(-stop // inner)
        block = np.zeros((last - first, *shape[1:]) if shape else (1,), dtype_of(dtype, folder))
        for chunk in chunks:
            offsets, sizes = (chunk.offsets, chunk.sizes) if shape else ((0,), (1,))
            low, high = max(first, offsets[0]), min(last, offsets[0] + sizes[0])
            if low >= high:
                continue
            if len(shape) < 2:
                piece = reader(chunk)(0, 1).reshape(sizes)[low - offsets[0] : high - offsets[0]]
            else:
                step = math.prod(sizes[1:-1])
                piece = reader(chunk)((low - offsets[0]) * step, (high - offsets[0]) * step)
            target = (slice(low - first, high - first), *(slice(o, o + n) for o, n in zip(offsets[1:], sizes[1:])))
            block[target] = piece.reshape(high - low, *sizes[1:])
        if len(shape) < 2:
            return block.reshape(1, -1)
        return block.reshape(-1, shape[-1])[start - first * inner : stop - first * inner]

    return read
