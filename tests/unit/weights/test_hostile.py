"""Files of a stranger: no code is run, no size is believed, no name leads elsewhere; each is refused in one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.__main__ import main
from numscope.core.errors import NumscopeError
from numscope.weights.sources import open_weights


class Evil:
    """An object that runs a command where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch {self.mark}",)


def torch_file(path: Path, program: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def safetensors(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def npz(path: Path, header: str) -> Path:
    text = header.encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    return path


def gguf(path: Path, tensors: int, body: bytes, values: int = 0) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, values) + body)
    return path


def entry(name: str, *sizes: int, kind: int = 0, offset: int = 0) -> bytes:
    text = name.encode()
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


HUGE = 1 << 61


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["weights", str(path), str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("numscope: ")
    assert len(told.splitlines()) == 1
    assert "fault in numscope" not in told
    return told


@pytest.mark.parametrize("name", ["m.pt", "m.pdparams", "plain.pt", "folder/.metadata"])
def test_a_pickle_that_would_run_a_command_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, path = tmp_path / "ran", tmp_path / name
    path.parent.mkdir(exist_ok=True)
    program = pickle.dumps({"w": Evil(mark)})
    if name == "m.pt":
        torch_file(path, program)
    else:
        path.write_bytes(program)
    told = refused(path.parent if name.startswith("folder") else path, capsys)
    assert "safetensors" in told
    assert not mark.exists()


def sized(tmp_path: Path) -> dict[str, Path]:
    import torch

    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(4)}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        program = archive.read("archive/data.pkl")
    beyond = torch_file(tmp_path / "beyond.pt", program, **{"archive/data/0": b"\0" * 8})
    return {
        "a torch tensor beyond its storage": beyond,
        "a shape that overflows": safetensors(
            tmp_path / "a.safetensors",
            {"x": {"dtype": "F32", "shape": [HUGE, HUGE], "data_offsets": [0, 4]}},
            b"\0" * 4,
        ),
        "a negative shape": safetensors(
            tmp_path / "b.safetensors", {"x": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"\0" * 4
        ),
        "offsets beyond the end": safetensors(
            tmp_path / "c.safetensors", {"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
        ),
        "a header longer than the file": _written(tmp_path / "d.safetensors", (1 << 63).to_bytes(8, "little") + b"{}"),
        "an array of numpy's of 2^61": npz(
            tmp_path / "e.npz", f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({HUGE}, {HUGE})}}"
        ),
        "an array of objects": npz(tmp_path / "f.npz", "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
        "a GGUF of 2^61 tensors": gguf(tmp_path / "g.gguf", HUGE, b""),
        "a GGUF tensor that overflows": gguf(tmp_path / "h.gguf", 1, entry("x", HUGE, HUGE, 8)),
        "a GGUF tensor beyond the end": gguf(tmp_path / "i.gguf", 1, entry("x", 256, 256)),
        "a GGUF name of 2^61 bytes": gguf(tmp_path / "j.gguf", 1, struct.pack("<Q", HUGE)),
        "a GGUF of 2^31 axes": gguf(tmp_path / "k.gguf", 1, entry("x")[:9] + struct.pack("<I", 1 << 31)),
        "a weights file of ours with too many lines": _fingerprints(tmp_path / "l.weights"),
    }


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _fingerprints(path: Path) -> Path:
    one = {
        "name": "x",
        "stored": [],
        "dtype": "float32",
        "shape": [4, 4],
        "encoding": None,
        "hash": "1",
        "lines": [HUGE, 4],
    }
    one |= {"statistics": [0, 0, 0, 0], "counts": [0, 0]}
    text = json.dumps({"format": "numscope.weights-file/1", "tensors": [one]})
    parts = {
        name: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]}
        for name, kind, shape in (("hash", "U64", [0]), ("sums", "F32", [0, 4]), ("norm", "F32", [0]))
    }
    return safetensors(path, {"__metadata__": {"numscope": text}, **parts})


@pytest.mark.parametrize("number", range(13))
def test_a_size_that_cannot_be_is_refused(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(list(sized(tmp_path).values())[number], capsys)


@pytest.mark.parametrize("kind", ["index", "safetensors", "npz", "torch", "gguf"])
def test_a_name_that_leads_elsewhere_is_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "../../etc/passwd"
    path = tmp_path / f"x.{kind}"
    if kind == "index":
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": {"w": name}}))
    elif kind == "safetensors":
        safetensors(path, {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4)
    elif kind == "npz":
        np.savez(path, **{name: np.zeros(3)})
    elif kind == "torch":
        torch_file(tmp_path / "x.pt", pickle.dumps({}), **{name: b""})
        path = tmp_path / "x.pt"
    else:
        gguf(path, 1, entry(name, 2) + b"\0" * 64)
    assert ".." in refused(path, capsys)


def test_a_part_of_a_distributed_checkpoint_that_lies_elsewhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "d", no_dist=True)
    metadata = tmp_path / "d" / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"__0_0.distcp", b"../../secret"))
    assert ".." in refused(tmp_path / "d", capsys)


def test_what_a_terminal_obeys_is_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = safetensors(
        tmp_path / "x.safetensors", {"\x1b[2Jx": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4
    )
    assert main(["weights", str(path), str(path), "--explain"]) == 0
    assert "\x1b[2J" not in capsys.readouterr().out


def valid(tmp_path: Path) -> list[Path]:
    import torch
    from safetensors.numpy import save_file

    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    save_file({"x": array}, tmp_path / "x.safetensors")
    torch.save({"x": torch.from_numpy(array)}, tmp_path / "x.pt")
    np.savez(tmp_path / "x.npz", x=array)
    gguf(tmp_path / "x.gguf", 1, entry("x", 4, 3) + b"\0" * 7 + array.tobytes() + b"\0" * 64)
    return sorted(tmp_path.glob("x.*"))


@settings(max_examples=60, deadline=None)
@given(which=st.integers(0, 3), at=st.floats(0, 1), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_is_read_or_refused_but_nothing_else(
    which: int, at: float, value: int, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = valid(tmp_path_factory.mktemp("damaged"))[which]
    content = bytearray(path.read_bytes())
    place = int(at * (len(content) - 1))
    if cut:
        del content[place:]
    else:
        content[place] = value
    path.write_bytes(content)
    try:
        for tensor in open_weights(path):
            tensor.elements()
    except NumscopeError:
        pass
