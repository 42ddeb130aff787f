"""Files that are nearly good are read, or refused with one line; `make fuzz` takes ten minutes for it."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.core.errors import NumscopeError, RunError, SettingsError
from numscope.core.settings import CaptureSettings, GuardSettings, from_text
from numscope.store.formats.detect import open_dump
from numscope.store.formats.foreign import load_npy, write_run
from numscope.store.reader import open_run
from numscope.store.shards import Shard
from numscope.weights.sources import open_weights
from tests.fuzz.__main__ import tried
from tests.fuzz.dumps import MSPROBE
from tests.fuzz.mutate import mutated
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS, a_run

_FEW = 25


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_nearly_good_is_read_or_refused(target: Target, tmp_path: Path) -> None:
    rng = random.Random(7)
    for content in target.good(tmp_path / "runs"):
        assert tried(target, content, tmp_path) == ""
        for _ in range(_FEW):
            damaged = mutated(content, rng)
            assert tried(target, damaged, tmp_path) == "", damaged[:300]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_anything_at_all_is_read_or_refused(target: Target, tmp_path: Path) -> None:
    good = target.good(tmp_path / "runs")

    # The start of a good file leads further than chance would.
    @settings(max_examples=10, deadline=None, database=None, derandomize=True)
    @given(st.integers(0, 40), st.binary(max_size=200))
    def try_one(kept: int, rest: bytes) -> None:
        assert tried(target, good[0][:kept] + rest, tmp_path) == ""

    try_one()


NAMES = sorted(field.name for kind in (CaptureSettings, GuardSettings) for field in fields(kind))


@settings(max_examples=400, deadline=None, database=None)
@given(st.sampled_from(NAMES), st.text() | st.from_regex(r"[-0-9.,:*/a-zA-Z ]{0,20}", fullmatch=True))
def test_any_text_is_a_setting_or_refused_in_one_line(name: str, text: str) -> None:
    for kind in (CaptureSettings, GuardSettings):
        if name in {field.name for field in fields(kind)}:
            lines = ["valid"]
            try:
                kind.of(**{name: from_text(name, text) if kind is CaptureSettings else text})
            except NumscopeError as refused:
                lines = str(refused).splitlines()
            assert len(lines) == 1


def dump_of(folder: Path, name: str, content: bytes, form: str) -> None:
    folder.mkdir()
    (folder / name).write_bytes(content)
    for step in open_dump(folder, form).steps:
        for call in step.calls:
            for _, tensor in call.slots:
                assert tensor


# Found by fuzzing: each ended with a traceback.
FOUND = [
    ("a.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3", "plain"),
    (
        "a.npy",
        b"\x93NUMPY\x01\x00F\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }  \n",
        "plain",
    ),
    ("a.npy", b"", "plain"),
    ("a.npz", b"not an archive at all", "plain"),
    ("a.pt", b"not an archive at all", "plain"),
    ("dump.json", b'{"task": "tensor", "data": {"\xff": 1}}', "msprobe"),
    ("dump.json", b"[" * 100_000, "msprobe"),
]


@pytest.mark.parametrize(("name", "content", "form"), FOUND)
def test_found_files_are_refused(tmp_path: Path, name: str, content: bytes, form: str) -> None:
    with pytest.raises(NumscopeError) as refused:
        dump_of(tmp_path / "dump", name, content, form)
    assert len(str(refused.value).splitlines()) == 1
    assert str(tmp_path) in str(refused.value)


def test_an_archive_whose_index_lies_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3))
    content = stream.getvalue()
    for wrong in (content.replace(b"a.npy", b"b.npy", 1), content[:-30] + b"\xff" * 8 + content[-22:]):
        with pytest.raises(RunError, match="cannot be read"):
            dump_of(tmp_path / str(len(wrong) + wrong[30]), "a.npz", wrong, "plain")
    assert zipfile.is_zipfile(io.BytesIO(content))


@pytest.mark.parametrize(
    "entry", [b"{}", b"[]", b'{"dtype":"F32"}', b'{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}']
)
def test_an_entry_that_says_nothing_is_named(tmp_path: Path, entry: bytes) -> None:
    header = b'{"0011":' + entry + b"}"
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(RunError, match="entry 0011 does not say"):
        Shard(tmp_path / "a.safetensors").array("0011", "float32")


def test_an_array_that_was_cut_off_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(5))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(RunError, match=r"a\.npy cannot be read"):
        load_npy(tmp_path / "a.npy")


@pytest.mark.parametrize("text", ["²", "9" * 5000, "9" * 400 + " GB", "1-²", f"1-{'9' * 5000}", "1,²,3"])
@pytest.mark.parametrize("name", ["max_tensors", "max_bytes", "steps", "sample", "keep_last"])
def test_digits_that_are_no_number_are_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError):
        CaptureSettings.of(**{name: from_text(name, text)})


@pytest.mark.parametrize("content", ["max_tensors = 'x'", "keep_last = 1.5", "stacks = []", "backward = 'maybe'"])
def test_a_settings_file_with_a_value_of_another_kind_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(content)
    with pytest.raises(SettingsError, match="give"):
        CaptureSettings.of(config=tmp_path / "settings.toml")


HUGE_SHAPE = json.dumps(MSPROBE).replace("[2, 3]", f"[{10**30}]").encode()
MANY_SIZES = f'["21_Torch_norm_forward_input", [1.0], "torch.float32", {[1] * 100}]\n'.encode()


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [("dump.json", HUGE_SHAPE, "msprobe"), ("dump.pkl", MANY_SIZES, "torch_npu")],
)
def test_a_dump_whose_numbers_no_table_holds_is_refused(tmp_path: Path, name: str, content: bytes, form: str) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / name).write_bytes(content)
    with pytest.raises(RunError, match=r"step 0 of the \S+ dump cannot be read"):
        write_run(tmp_path / "run", open_dump(tmp_path / "dump", form))


@pytest.mark.parametrize(("what", "wrong"), [("step", "-1"), ("segment", "1e999"), ("faults", "1e999"), ("rows", "[]")])
def test_a_line_of_steps_with_a_number_that_is_none_is_named(tmp_path: Path, what: str, wrong: str) -> None:
    shutil.copytree(a_run(tmp_path), tmp_path / "run")
    path = tmp_path / "run" / "rank0" / "steps.jsonl"
    line = {**json.loads(path.read_text().splitlines()[0]), what: "X"}
    path.write_text(json.dumps(line).replace('"X"', wrong) + "\n")
    with pytest.raises(RunError, match=r"steps\.jsonl is damaged \(line 1\)"):
        open_run(tmp_path / "run")


def test_an_index_that_names_a_file_which_cannot_be_is_refused(tmp_path: Path) -> None:
    for name in ("x" * 5000, "missing.safetensors"):
        (tmp_path / "a.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        with pytest.raises(RunError, match="which is not in its folder"):
            open_weights(tmp_path / "a.index.json")
