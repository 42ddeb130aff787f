"""Runs and dumps of a stranger: nothing is executed, nothing is written, and no more memory is taken than they hold."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from numscope.__main__ import main
from numscope.core.errors import RunError
from numscope.core.untrusted import check_size, is_own, shown
from numscope.store.formats import plain_folder, torch_file
from numscope.store.reader import open_run
from numscope.store.schema import TABLES
from tests.unit.store.batches import write_run

HUGE = 25_000_000_000  # float32 elements: 100 GB


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let what takes more than some GB of memory fail."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def npy(path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({HUGE},), }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(16))


def objects(path: Path) -> None:
    np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)


class Evil:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("executed",)


def header_of(path: Path, entry: dict[str, object], length: int | None = None) -> None:
    text = json.dumps({"x": entry}).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(16))


def shape_of(path: Path) -> None:
    header_of(path, {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 16]})


def length_of(path: Path) -> None:
    header_of(path, {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, length=1 << 62)


def negative(path: Path) -> None:
    header_of(path, {"dtype": "F32", "shape": [-4, -1], "data_offsets": [-64, -48]})


def pt(path: Path, shape: tuple[int, ...] = (HUGE,), strides: tuple[int, ...] = (0,)) -> None:
    torch_file.save(path, np.ones(1, np.float32))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    program = next(name for name in members if name.endswith("data.pkl"))
    long = [b"\x8a" + bytes([6]) + number.to_bytes(6, "little") for number in (*shape, *strides)]
    members[program] = members[program].replace(
        b"(J\x01\x00\x00\x00t(J\x01\x00\x00\x00t", b"(" + long[0] + b"t(" + long[1] + b"t"
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def program_of(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(Evil()))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.npy", npy),
        ("a.npy", objects),
        ("a.safetensors", shape_of),
        ("a.safetensors", length_of),
        ("a.safetensors", negative),
        ("a.pt", pt),
        ("a.pt", program_of),
    ],
)
def test_a_strangers_dump_is_one_line(
    name: str,
    make: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump").mkdir()
    make(tmp_path / "dump" / name)
    assert main(["import", "dump", "run"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "fault in numscope" not in error, error
    assert not Path("executed").exists()


def test_an_archive_that_unpacks_to_more_than_the_memory_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numscope.core.untrusted._memory", lambda: 1 << 20)
    torch_file.save(tmp_path / "a.pt", np.ones(4, np.float32))
    torch_file.load(tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data/1", bytes(8 << 20))
    assert (tmp_path / "a.pt").stat().st_size < 20_000
    with pytest.raises(RunError, match="more than this machine's memory"):
        torch_file.load(tmp_path / "a.pt")
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros(1 << 20))
    (tmp_path / "a.pt").unlink()
    with pytest.raises(RunError, match="more than this machine's memory"):
        plain_folder.read(tmp_path)


def test_containers_that_name_each_other_end(tmp_path: Path) -> None:
    value: object = np.ones(1)
    for _ in range(300):
        value = [value]
    with pytest.raises(RunError, match="nested too deeply"):
        list(torch_file.arrays_in(value))


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_a_run_holds_plain_files_alone(what: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    path = tmp_path / "run/rank0/000000.safetensors"
    kept = path.rename(tmp_path / "elsewhere")
    path.symlink_to(kept) if what == "link" else os.mkfifo(path)
    with pytest.raises(RunError, match=r"leads out of the run|is a pipe or a device"):
        open_run(tmp_path / "run")


def test_a_run_may_be_named_by_a_link(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert open_run(tmp_path / "latest").steps == [0, 1, 2]


def test_what_a_terminal_obeys_is_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("a\x1b]0;evil\x07b\tc\u202ed\x9be") == "a\\x1b]0;evil\\x07b\tc\\u202ed\\x9be"
    assert shown("\x1b[31;1mred\x1b[0m \x1b[8mhidden \x1b[2J", coloured=True) == (
        "\x1b[31;1mred\x1b[0m \\x1b[8mhidden \\x1b[2J"
    )
    write_run(tmp_path / "run", manifest={"framework": "torch\x1b[2J", "script": "\x1b]52;c;ZXZpbA==\x07.py"})
    assert main(["show", str(tmp_path / "run")]) == 0
    assert main(["show", str(tmp_path / "run\x1b[2J")]) == 2
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\\x1b[2J" in out


def test_files_that_others_may_have_written_are_not_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not is_own(path)
    path.touch()
    assert is_own(path)
    path.chmod(0o666)
    assert not is_own(path)
    assert not is_own(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert not is_own(tmp_path / "pipe")


def test_more_than_the_machine_has_is_refused() -> None:
    check_size(1 << 20, "a file")
    with pytest.raises(RunError, match="a file says that it holds 1000000 GB"):
        check_size(10**15, "a file")


def test_a_good_folder_still_reads(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros(1000))
    torch_file.save(tmp_path / "c.pt", {"w": np.ones((2, 3), np.float32)})
    dump = plain_folder.read(tmp_path)
    assert sum(len(step.calls) for step in dump.steps) == 3


def without_checksums(run: Path) -> None:
    """Leave out what a deceiver would write anew."""
    for path in (run / "manifest.json", run / "rank0" / "rank.json"):
        facts = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in facts.items() if k not in ("checksums", "checksum", "id", "run")}))


def of_rows(count: int) -> pa.Table:
    schema = TABLES["calls"]
    columns = [
        pa.array(np.zeros(count, np.int32)).cast(field.type)
        if pa.types.is_integer(field.type)
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names)


def test_a_table_of_a_few_kilobytes_that_says_it_is_huge_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run")
    without_checksums(tmp_path / "run")
    path = tmp_path / "run/rank0/000000/calls.parquet"
    pq.write_table(of_rows(1 << 20), path, compression="ZSTD", store_schema=False)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("numscope.core.untrusted._memory", lambda: 1 << 24)
    with pytest.raises(RunError, match=r"calls.parquet says that it holds \d+ GB, more than this machine's memory"):
        _ = open_run(tmp_path / "run").calls


def test_a_compressed_stream_is_not_unpacked(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    without_checksums(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/rank0/000000")
    for compression in (None, "zstd", "lz4"):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        path = tmp_path / "run/rank0/000000.calls.arrows"
        with path.open("wb") as file, pa.ipc.new_stream(file, TABLES["calls"], options=options) as stream:
            stream.write_table(of_rows(1000).cast(TABLES["calls"]))
        if compression is None:
            with pytest.raises(RunError, match=r"slots\.arrows is missing"):
                _ = open_run(tmp_path / "run").tensors
        else:
            with pytest.raises(RunError, match=r"calls\.arrows is compressed"):
                _ = open_run(tmp_path / "run").tensors
