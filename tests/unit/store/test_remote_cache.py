"""The cache of runs that lie elsewhere: its upper size, its locks, and `numscope cache`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numscope.__main__ import main
from numscope.core.errors import SettingsError
from numscope.core.settings import from_environment
from numscope.store.remote import cache


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cache.VARIABLE, "10kB")
    return cache.root()


def add(name: str, size: int, used: float) -> Path:
    entry = cache.root() / name
    (entry / "run" / name / "rank0").mkdir(parents=True)
    (entry / "origin").write_text(f"s3://key:secret@bucket/{name}")
    (entry / "run" / name / "rank0" / "data").write_bytes(bytes(size))
    (entry / "readers.lock").touch()
    os.utime(entry / "readers.lock", (used, used))
    return entry


def names() -> list[str]:
    return [entry.path.name for entry in cache.entries()]


def test_the_longest_unused_runs_go_first_and_only_as_many_as_must(root: Path) -> None:
    for name, used in (("new", 3e9), ("old", 1e9), ("middle", 2e9)):
        add(name, 3000, used)
    cache.make_room(500)
    assert names() == ["old", "middle", "new"]
    cache.make_room(2000)
    assert names() == ["middle", "new"]
    cache.make_room(1_000_000)
    assert names() == []


HOLD = """
import sys
from pathlib import Path
from numscope.store.remote import cache
cache.begin_reading(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_that_another_process_reads_is_left(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = add("held", 9000, 1e9)
    reader = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(entry)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "held\n"
        cache.make_room(5000)
        assert names() == ["held"]
        assert main(["cache", "--clear"]) == 2
        assert "s3://bucket/held is being read" in capsys.readouterr().out
        reader.communicate("")
    cache.make_room(5000)
    assert names() == []


def test_a_run_that_this_process_reads_is_left(root: Path) -> None:
    entry = add("own", 9000, 1e9)
    cache.begin_reading(entry)
    cache.make_room(5000)
    assert names() == ["own"]


def test_the_list_has_sizes_and_no_credentials(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add("one", 3000, 1e9)
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "s3://bucket/one" in out
    assert "3.0 KB of 10.0 KB at most" in out
    assert "secret" not in out
    assert main(["cache", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["address"], row["used"]) == ("s3://bucket/one", 1e9)


def test_one_address_or_all_are_cleared(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        add(name, 10, 1e9)
    assert main(["cache", "--clear", "s3://bucket/four"]) == 2
    assert "no copy of s3://bucket/four" in capsys.readouterr().err
    assert main(["cache", "--clear", "s3://bucket/two/"]) == 0
    assert sorted(names()) == ["one", "three"]
    assert main(["cache", "--clear"]) == 0
    assert names() == []
    assert list(root.iterdir()) == []


def test_a_size_that_is_none_is_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.most_bytes() == 10_000
    monkeypatch.setenv(cache.VARIABLE, "1.5 TB")
    assert cache.most_bytes() == 1_500_000_000_000
    monkeypatch.setenv(cache.VARIABLE, "much")
    with pytest.raises(SettingsError, match="'much' is no size: write 50GB"):
        cache.most_bytes()
    monkeypatch.delenv(cache.VARIABLE)
    assert cache.most_bytes() > 10**8


def test_a_lock_that_is_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    entry = add("linked", 10, 1e9)
    (entry / "readers.lock").unlink()
    (entry / "readers.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        cache.begin_reading(entry)
    assert not (tmp_path / "elsewhere").exists()


def test_the_size_is_no_setting_of_a_capture(root: Path) -> None:
    assert from_environment(dict(os.environ)) == {}
