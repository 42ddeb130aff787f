"""Runs that lie elsewhere; a directory of this machine, behind an address, stands for the other machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem

from numscope.core.errors import RunError
from numscope.store import remote
from numscope.store.reader import open_run
from numscope.store.rundir import check
from tests.unit.store.batches import write_run

URL = "s3://bucket/runs/one"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "there"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def file_system(url: str) -> tuple[Any, str]:
        assert url == URL
        return LocalFileSystem(), str(directory)

    monkeypatch.setattr(remote, "_file_system", file_system)
    return directory


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


def test_opening_it_again_brings_what_is_new(there: Path) -> None:
    write_run(there, steps=1)
    before = open_run(URL)
    (before.path / "rank7").mkdir()
    (before.path / "rank7" / "steps.jsonl").touch()  # what is there no longer goes here too
    write_run(there, steps=3, overwrite=True)
    after = open_run(URL)
    assert after.path == before.path
    assert (len(before.steps), len(after.steps)) == (1, 3)
    assert not (after.path / "rank7" / "steps.jsonl").exists()

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
