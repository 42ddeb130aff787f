"""Runs that lie elsewhere; a directory of this machine, behind an address, stands for the other machine."""

from __future__ import annotations

import errno
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileSystemHandler, FileType, LocalFileSystem, PyFileSystem

from numscope.core.errors import RunError
from numscope.store.reader import open_run
from numscope.store.remote import copies
from numscope.store.rundir import check
from tests.unit.store.batches import write_run

URL = "s3://bucket/runs/one"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "there"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def file_system(url: str) -> tuple[FileSystem, str]:
        assert url == URL
        return LocalFileSystem(), str(directory)

    monkeypatch.setattr(copies, "file_system", file_system)
    return directory


class Bucket(FileSystemHandler):
    """Objects under any key, as an object store lists them; `reads` counts how often each was copied."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.reads: dict[str, int] = {}
        self.listed_sizes: dict[str, int] = {}

    @classmethod
    def of_run(cls, directory: Path, root: str) -> Bucket:
        files = [path for path in directory.rglob("*") if path.is_file()]
        return cls({f"{root}/{path.relative_to(directory).as_posix()}": path.read_bytes() for path in files})

    def get_type_name(self) -> str:
        return "bucket"

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        return [self._info(key) for key in self.objects]

    def _info(self, key: str) -> FileInfo:
        if key not in self.objects:
            return FileInfo(key, FileType.NotFound)
        size = self.listed_sizes.get(key, len(self.objects[key]))
        return FileInfo(key, FileType.File, size=size, mtime_ns=1_700_000_000_000_000_001)

    def open_input_stream(self, path: str) -> pa.PythonFile:
        self.reads[path] = self.reads.get(path, 0) + 1
        return pa.PythonFile(io.BytesIO(self.objects[path]), mode="r")

    open_input_file = open_input_stream

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: object, **__: object) -> None:
        raise NotImplementedError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


def serve(monkeypatch: pytest.MonkeyPatch, buckets: dict[str, Bucket], root: str = "bucket/runs/one") -> None:
    """Let each address lead to a bucket of its own."""
    monkeypatch.setattr(copies, "file_system", lambda url: (PyFileSystem(buckets[url]), root))


def shards(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*.safetensors"))


def test_a_run_behind_an_address_reads_like_one_that_is_here(there: Path) -> None:
    write_run(there, steps=2)
    here, away = open_run(there), open_run(URL)
    assert away.steps == here.steps
    assert away.calls.equals(here.calls)
    assert away.tensors.equals(here.tensors)
    assert shards(there)
    assert not shards(away.path), "shards come when they are asked for"
    kept = here.tensors.filter(here.tensors["kept"])["name"][0].as_py()
    assert np.array_equal(away.tensor(kept), here.tensor(kept))
    assert shards(away.path)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_cache_on_a_file_system_without_locks_has_the_run(
    there: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refused)
    write_run(there, steps=2)
    kept = open_run(there).tensors.filter(open_run(there).tensors["kept"])["name"][0].as_py()
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(open_run, [URL] * 4))
    for run in runs:
        assert run.calls.equals(open_run(there).calls)
        assert np.array_equal(run.tensor(kept), open_run(there).tensor(kept))


def test_opening_it_again_brings_what_is_new(there: Path) -> None:
    write_run(there, steps=1)
    before = open_run(URL)
    (before.path / "rank7").mkdir()
    (before.path / "rank7" / "steps.jsonl").touch()  # what is there no longer goes here too
    write_run(there, steps=3, overwrite=True)
    after = open_run(URL)
    assert after.path == before.path
    assert (len(before.steps), len(after.steps)) == (1, 3)
    assert not (after.path / "rank7").exists()

    def files() -> dict[Path, int]:
        return {path: path.stat().st_ino for path in after.path.rglob("*.parquet")}

    copied = files()
    open_run(URL)
    assert copied
    assert files() == copied, "nothing was new"


def test_what_is_wrong_with_an_address_is_one_line(there: Path, tmp_path: Path) -> None:
    there.mkdir()
    with pytest.raises(RunError, match=r"has no manifest\.json: give the address of a run"):
        open_run(URL)
    there.rmdir()
    with pytest.raises(RunError, match=r"cannot be read .*check the address"):
        open_run(URL)
    with pytest.raises(RunError, match="a run is written to a directory"):
        check(Path(URL), 0, overwrite=False)


def test_unknown_schemes_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RunError, match=r"nope://x/y is no address that can be read \(.*s3, gs, hdfs and file can"):
        open_run("nope://x/y")


def test_an_address_of_this_machine_is_its_path(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=1)
    assert open_run((tmp_path / "run").as_uri()).path == tmp_path / "run"


@pytest.mark.parametrize(
    "name",
    [
        "../evil.so",
        "rank0/../../evil.so",
        "/etc/evil.so",
        "rank0//evil.so",
        "./evil.so",
        "..\\evil.so",
        "C:evil.so",
        "rank0/..",
    ],
)
def test_a_key_that_would_lie_outside_the_copy_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "run", steps=1)
    bucket = Bucket.of_run(tmp_path / "run", "bucket/runs/one")
    bucket.objects[f"bucket/runs/one/{name}"] = b"evil"
    serve(monkeypatch, {URL: bucket})
    with pytest.raises(RunError, match=r"holds an object named .*evil|holds an object named .*rank0/\.\.") as refused:
        open_run(URL)
    assert "\n" not in str(refused.value)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()], "nothing is written"


def test_an_object_cannot_say_where_the_rest_of_a_run_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "run", steps=1)
    bucket = Bucket.of_run(tmp_path / "run", "bucket/runs/one")
    bucket.objects |= {f"bucket/runs/one/{name}": b"file:///etc" for name in ("origin", ".origin")}
    serve(monkeypatch, {URL: bucket})
    kept = open_run(tmp_path / "run").tensors.filter(open_run(tmp_path / "run").tensors["kept"])["name"][0].as_py()
    assert open_run(URL).tensor(kept).size
    for shard in (tmp_path / "run").rglob("*.safetensors"):
        shard.unlink()
    for directory in (tmp_path / "run", tmp_path):  # nor can a run that lies here
        (directory / "origin").write_text(URL)
    with pytest.raises(RunError, match="is missing"):
        open_run(tmp_path / "run").tensor(kept)


def test_a_shard_that_the_tables_name_lies_in_the_run(there: Path) -> None:
    write_run(there, steps=1)
    for shard in ("../../evil.safetensors", "/etc/evil.safetensors"):
        for run in (open_run(there), open_run(URL)):
            with pytest.raises(RunError, match=r"its tables name a shard .*evil"):
                run.array(0, shard, "0", "float32", (1,))


def test_two_endpoints_with_the_same_bucket_and_key_are_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    urls = [f"s3://bucket/runs/one?endpoint_override=host-{n}" for n in range(2)]
    for n, url in enumerate(urls):
        write_run(tmp_path / str(n), steps=1 + n)
        serve(monkeypatch, {url: Bucket.of_run(tmp_path / str(n), "bucket/runs/one")})
        assert len(open_run(url).steps) == 1 + n
    assert len({copies._digest(url, "bucket/runs/one") for url in urls}) == 2
    before = copies._digest(URL, "bucket/runs/one")
    assert copies._digest("s3://key:secret@bucket/runs/one", "bucket/runs/one") == before
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert copies._digest(URL, "bucket/runs/one") != before


def test_threads_that_ask_for_the_same_shard_at_once_copy_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "run", steps=1)
    bucket = Bucket.of_run(tmp_path / "run", "bucket/runs/one")
    serve(monkeypatch, {URL: bucket})
    here = open_run(tmp_path / "run")
    kept = here.tensors.filter(here.tensors["kept"])["name"][0].as_py()
    runs = [open_run(URL) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        arrays = list(pool.map(lambda run: run.tensor(kept), runs))
    assert all(np.array_equal(array, here.tensor(kept)) for array in arrays)
    assert [count for key, count in bucket.reads.items() if key.endswith(".safetensors")] == [2]
    assert not list((tmp_path / "cache").glob("numscope/remote/*/partial/*"))


def test_threads_that_open_the_same_run_at_once_copy_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "run", steps=1)
    bucket = Bucket.of_run(tmp_path / "run", "bucket/runs/one")
    serve(monkeypatch, {URL: bucket})
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: open_run(URL), range(4)))
    assert all(run.calls.equals(open_run(tmp_path / "run").calls) for run in runs)
    assert set(bucket.reads.values()) == {2}, "the content, and the tag afterwards"


def test_a_file_that_is_not_as_long_as_listed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "run", steps=1)
    bucket = Bucket.of_run(tmp_path / "run", "bucket/runs/one")
    bucket.listed_sizes["bucket/runs/one/manifest.json"] = 5
    serve(monkeypatch, {URL: bucket})
    with pytest.raises(RunError, match=r"manifest\.json changes while it is copied \(\d+ bytes came, 5 are listed\)"):
        open_run(URL)
    assert not list((tmp_path / "cache").rglob("manifest.json"))


def test_the_address_is_for_the_users_eyes_alone(there: Path, tmp_path: Path) -> None:
    write_run(there, steps=1)
    open_run(URL)
    (origin,) = (tmp_path / "cache").glob("numscope/remote/*/origin")
    assert origin.stat().st_mode & 0o077 == 0
    assert os.listdir(tmp_path / "cache" / "numscope") == ["remote"]
