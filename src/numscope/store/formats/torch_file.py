"""Reads and writes torch's `.pt` files without torch, and without running any code that a file names.

A `.pt` file is a zip archive: a pickle program that describes nested containers, and one member of raw bytes for each
storage. The program is interpreted here over a closed list of instructions and names: tensors, parameters, containers
and plain values. Anything else is an error, unless the user trusts the file: then pickle itself reads it.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.core.untrusted import check_size, reading
from numscope.store.dtypes import numpy_dtype
from numscope.store.formats.pickle_program import Name, Rules, interpret

STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_STORAGE_OF = {dtype: name for name, dtype in STORAGES.items()}
_DEEPEST = 100  # containers in containers; each may be named twice by the one around it
_Storage = Callable[[object], AnyArray]  # returns the elements of a storage by its persistent id


def load(path: Path, trust_pickle: bool = False) -> object:
    """Return the content of a `.pt` file, tensors as numpy arrays."""
    if path.exists() and not zipfile.is_zipfile(path):
        raise RunError(
            f"{path} is not a .pt file in torch's zip format: save it again with torch.save of torch 1.6 or later"
        )
    with reading(path), zipfile.ZipFile(path) as archive:
        program = next((name for name in archive.namelist() if Path(name).name == "data.pkl"), None)
        if program is None:
            raise RunError(f"{path} is a zip file, but none that torch.save wrote: it has no data.pkl")
        root = program[: -len("data.pkl")]
        check_size(sum(member.file_size for member in archive.infolist()), path)
        storage = _storages(archive, root)
        content = archive.read(program)
        if trust_pickle:
            return _Trusting(io.BytesIO(content), storage).load()
        return _interpret(content, storage, path)


def arrays_in(value: object, path: str = "") -> Iterator[tuple[str, AnyArray]]:
    """Return the arrays in nested containers, each with its path such as `0.weight`; the value's own path is empty."""
    if path.count(".") > _DEEPEST:
        raise RunError("its containers are nested too deeply: it was not written by a training job")
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from arrays_in(item, f"{path}.{key}" if path else str(key))


def _storages(archive: zipfile.ZipFile, root: str) -> _Storage:
    cache: dict[str, AnyArray] = {}

    def storage(identity: object) -> AnyArray:
        if not isinstance(identity, tuple):
            raise ValueError("a storage has no identity")
        _, kind, key, _, count = identity[:5]
        if key not in cache:
            name = kind.name if isinstance(kind, Name) else getattr(kind, "__name__", str(kind))
            dtype = numpy_dtype(STORAGES.get(name, "uint8"))
            raw = np.frombuffer(archive.read(f"{root}data/{key}"), np.uint8)
            cache[key] = raw if dtype is None or name not in STORAGES else raw.view(dtype)[:count]
        return cache[key]

    return storage


def _rebuild_tensor(
    storage: AnyArray, offset: int, shape: Iterable[int], strides: Iterable[int], *_: object
) -> AnyArray:
    shape, strides = tuple(shape), tuple(strides)
    reach = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if math.prod(shape) else 0
    if offset < 0 or any(stride < 0 for stride in strides) or reach > len(storage):
        raise ValueError("a tensor reaches beyond its storage")
    check_size(math.prod(shape) * storage.itemsize, "a tensor of it")  # one element may stand for many, by strides of 0
    if not math.prod(shape):
        return np.empty(shape, storage.dtype)
    steps = tuple(stride * storage.itemsize for stride in strides)
    raw = storage.view(f"V{storage.itemsize}")[offset:]  # numpy's strides don't know the dtypes of ml_dtypes
    return np.lib.stride_tricks.as_strided(raw, shape, steps).copy().view(storage.dtype).reshape(shape)


def _rebuild_tensor_v3(
    storage: AnyArray,
    offset: int,
    shape: Iterable[int],
    strides: Iterable[int],
    _requires_grad: object,
    _hooks: object,
    dtype: object,
    *_: object,
) -> AnyArray:
    kind = numpy_dtype(dtype.name if isinstance(dtype, Name) else str(dtype).removeprefix("torch."))
    if kind is None:
        raise ValueError(f"numpy has no {dtype}")
    return _rebuild_tensor(storage.view(kind), offset, shape, strides)


def _first(value: object, *_: object) -> object:
    return value


_CALLABLE: dict[tuple[str, str], Callable[..., object]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("torch", "device"): lambda *parts: ":".join(map(str, parts)),
    ("torch.serialization", "_get_layout"): _first,
}


def _interpret(program: bytes, storage: _Storage, path: Path) -> object:
    """Run a pickle program over the closed list of allowed instructions and names."""
    return interpret(program, Rules(_CALLABLE, is_storage_or_dtype, persistent=storage), path)


def is_storage_or_dtype(module: str, name: str) -> bool:
    if module == "torch":
        return name in STORAGES or numpy_dtype(name) is not None
    return (module, name) == ("torch.storage", "UntypedStorage")


class _Trusting(pickle.Unpickler):
    """Unpickles a file that the user trusts; torch's own names still become numpy arrays."""

    def __init__(self, file: IO[bytes], storage: _Storage) -> None:
        super().__init__(file)
        self._storage = storage

    def persistent_load(self, pid: object) -> AnyArray:
        return self._storage(pid)

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in _CALLABLE:
            return _CALLABLE[module, name]
        return Name(module, name) if is_storage_or_dtype(module, name) else super().find_class(module, name)


def save(path: Path, value: object) -> None:
    """Write tensors (numpy arrays) and plain values in nested containers; torch.load(weights_only=True) reads the file."""
    writer = _Writer()
    writer.put(value)
    root = path.stem or "archive"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/data.pkl", b"\x80\x02" + b"".join(writer.parts) + b".")
        archive.writestr(f"{root}/byteorder", b"little")
        for key, raw in enumerate(writer.storages):
            archive.writestr(f"{root}/data/{key}", raw)
        archive.writestr(f"{root}/version", b"3\n")


class _Writer:
    """Encodes values as instructions of pickle's protocol 2, the one torch.save uses."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.storages: list[bytes] = []

    def put(self, value: object) -> None:
        parts = self.parts
        if value is None or isinstance(value, (bool, np.bool_)):
            parts.append(b"N" if value is None else (b"\x88" if value else b"\x89"))
        elif isinstance(value, (int, np.integer)):
            self._integer(int(value))
        elif isinstance(value, (float, np.floating)) and not isinstance(value, np.ndarray):
            parts.append(b"G" + struct.pack(">d", float(value)))
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
            parts.append(b"X" + len(text).to_bytes(4, "little") + text)
        elif isinstance(value, np.ndarray):
            self._tensor(value)
        elif isinstance(value, Mapping):
            parts.append(b"}(")
            for key, item in value.items():
                self.put(key)
                self.put(item)
            parts.append(b"u")
        elif isinstance(value, (list, tuple)):
            parts.append(b"](" if isinstance(value, list) else b"(")
            for item in value:
                self.put(item)
            parts.append(b"e" if isinstance(value, list) else b"t")
        else:
            raise TypeError(f"a .pt file of numscope's holds tensors and plain values, not {type(value).__name__}")

    def _integer(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self.parts.append(b"J" + value.to_bytes(4, "little", signed=True))
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.parts.append(b"\x8a" + bytes([len(raw)]) + raw)

    def _name(self, module: str, name: str) -> None:
        self.parts.append(f"c{module}\n{name}\n".encode())

    def _tensor(self, array: AnyArray) -> None:
        dtype = array.dtype.name
        storage = _STORAGE_OF.get(dtype)
        self._name("torch._utils", "_rebuild_tensor_v2" if storage else "_rebuild_tensor_v3")
        self.parts.append(b"((")
        self.put("storage")
        self._name(*(("torch", storage) if storage else ("torch.storage", "UntypedStorage")))
        self.put(str(len(self.storages)))
        self.put("cpu")
        self._integer(array.size if storage else array.nbytes)
        self.parts.append(b"tQ")
        self._integer(0)
        self.put(tuple(array.shape))
        self.put(tuple(stride // array.itemsize for stride in np.empty(array.shape, array.dtype).strides))
        self.put(False)
        self._name("collections", "OrderedDict")
        self.parts.append(b")R")
        if storage is None:
            self._name("torch", dtype)
        self.parts.append(b"tR")
        self.storages.append(np.ascontiguousarray(array).tobytes())
