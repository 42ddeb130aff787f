"""The compiled form: made once, tried out, used where it can be had, and never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.fingerprint import native
from numscope.fingerprint.torch_form import TorchBatch
from tests.unit.fingerprint.agreement import assert_agrees, numpy_of, tensor_of_bytes, tensor_of_normals

needs_compiler = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler here")

TELL = """
import torch
from numscope.fingerprint import native
from numscope.fingerprint.torch_form import TorchBatch
batch = TorchBatch()
batch.add(torch.arange(1000.0))
print(native.load() is not None, batch.collect().hash[0])
"""


def _told(cache: Path, **variables: str) -> list[str]:
    """Return whether a new process, with its cache there, has the compiled form, and the hash of a content."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    command = [sys.executable, "-c", TELL]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def _right() -> str:
    batch = TorchBatch(native=False)
    batch.add(torch.arange(1000.0))
    return str(batch.collect().hash[0])


@needs_compiler
def test_it_is_compiled_once_and_found_by_the_next_process(tmp_path: Path) -> None:
    assert _told(tmp_path) == ["True", _right()]
    made = {one.name: one.stat().st_mtime_ns for one in (tmp_path / "numscope").iterdir()}
    assert {Path(name).suffix for name in made} == {".so", ".sha256"}
    assert _told(tmp_path, CC="/nowhere/cc") == ["True", _right()]
    assert {one.name: one.stat().st_mtime_ns for one in (tmp_path / "numscope").iterdir()} == made


def test_without_a_compiler_contents_are_measured_by_numpy(tmp_path: Path) -> None:
    assert _told(tmp_path, CC="/nowhere/cc") == ["False", _right()]
    assert list((tmp_path / "numscope").iterdir()) == []


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert _told(tmp_path, NUMSCOPE_NATIVE="0") == ["False", _right()]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "numscope").mkdir()
    (tmp_path / "numscope").chmod(0o777)
    assert _told(tmp_path) == ["False", _right()]


def test_where_no_folder_can_be_made_numpy_measures(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert _told(tmp_path / "file") == ["False", _right()]


@needs_compiler
def test_a_library_that_is_not_as_it_was_compiled_is_never_loaded(tmp_path: Path) -> None:
    _told(tmp_path)
    (library,) = (tmp_path / "numscope").glob("*.so")
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 2])  # loading it would end the process
    assert _told(tmp_path, CC="/nowhere/cc") == ["False", _right()]
    library.write_bytes(content)
    library.chmod(0o722)
    assert _told(tmp_path, CC="/nowhere/cc") == ["False", _right()]
    library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(tmp_path / "elsewhere.so")
    assert _told(tmp_path, CC="/nowhere/cc") == ["False", _right()]
    assert _told(tmp_path) == ["True", _right()]
    assert library.read_bytes() == content or not library.is_symlink()


@needs_compiler
def test_one_that_measures_wrongly_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in native._SOURCES:
        text = (Path(native.__file__).with_name(name)).read_text()
        (tmp_path / name).write_text(text.replace("SEED_ROLLS = 6044", "SEED_ROLLS = 6045"))
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ArithmeticError, match="float32"):
        native._library()
    assert list((tmp_path / "cache" / "numscope").iterdir()) == []


@needs_compiler
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_tiny_numbers_count_where_the_job_flushes_them_to_zero(name: str) -> None:
    tiny = {"float32": 1e-41, "bfloat16": 1e-40, "float16": 1e-6, "float64": 1e-310}[name]
    tensor = torch.full((3000,), tiny, dtype=torch.float64).to(getattr(torch, name))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor can't")
    try:
        batch = TorchBatch()
        batch.add(tensor)
        result = batch.collect()
        flushed = bool((tensor[:1].float() * 0.5 == 0).item()) if name == "float32" else True
    finally:
        torch.set_flush_denormal(False)
    assert flushed  # the job's own setting is as it was
    if name != "float64":  # whose squares vanish, so that numpy measures it
        assert_agrees(result, numpy_of(tensor))


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of any dtype that show a part of their memory in any order."""
    name = draw(st.sampled_from(["float32", "bfloat16", "float64", "int64", "uint8", "int16", "bool", "complex64"]))
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 40]), max_size=4))
    make = draw(st.sampled_from([tensor_of_normals, tensor_of_bytes]))
    tensor = make(name, int(np.prod(shape, dtype=int)), draw(st.integers(0, 99))).view(shape)
    for axis in range(tensor.dim()):
        start, step = draw(st.integers(0, tensor.shape[axis] - 1)), draw(st.sampled_from([1, 1, 2, 3]))
        tensor = tensor[(slice(None),) * axis + (slice(start, None, step),)]
    tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, tensor.dim()))
        tensor = tensor.unsqueeze(at).expand(*tensor.shape[:at], draw(st.sampled_from([1, 2, 19])), *tensor.shape[at:])
    return tensor


@needs_compiler
@settings(max_examples=300, deadline=None)
@given(st.lists(views(), min_size=1, max_size=4))
def test_elements_in_any_order_are_measured_in_theirs(tensors: list[torch.Tensor]) -> None:
    assert native.load() is not None
    batch = TorchBatch()
    for tensor in tensors:
        batch.add(tensor)
        batch.add_alike(tensor, (tensor.dtype, tensor.shape, tensor.stride()))
        batch.add_alike(tensor, (tensor.dtype, tensor.shape, tensor.stride()))
    result = batch.collect()
    for row, tensor in enumerate(tensors):
        for again in range(3):
            assert_agrees(result, numpy_of(tensor), 3 * row + again, tensor.numel())


@needs_compiler
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "uint8"])
@pytest.mark.parametrize("shape", [(300, 77), (16, 2000), (2000, 16), (1500, 1029), (3, 70, 90), (20, 21, 22)])
def test_transposed_matrices(name: str, shape: tuple[int, ...]) -> None:
    tensor = tensor_of_normals(name, int(np.prod(shape)), 0).view(shape)
    batch = TorchBatch()
    ways = [tensor.mT, tensor.mT[1:], tensor[..., 3:].mT, tensor.transpose(0, -1)]
    for way in ways:
        batch.add(way)
    result = batch.collect()
    for row, way in enumerate(ways):
        assert_agrees(result, numpy_of(way), row)


@needs_compiler
def test_more_dimensions_than_the_function_has() -> None:
    tensor = torch.randn(3**10).view((3,) * 10).permute(9, 7, 5, 3, 1, 8, 6, 4, 2, 0)
    batch = TorchBatch()
    batch.add(tensor)
    assert_agrees(batch.collect(), numpy_of(tensor))


@needs_compiler
def test_forms_that_are_known_are_measured_alike() -> None:
    batch, tensors = TorchBatch(), []
    for name in ("float32", "bfloat16", "int64", "bool", "float64", "complex64"):
        for size in (1, 70, 5000, 100_001):
            alike = object()
            for seed in range(3):
                tensors.append(tensor_of_bytes(name, size, seed) if seed else tensor_of_normals(name, size, seed))
                batch.add_alike(tensors[-1], alike)
    half, result = batch.flush(), None
    for tensor in tensors[:50]:  # into rows that come after these
        batch.add_alike(tensor, (tensor.dtype, tensor.numel()))
    result = half()
    for row, tensor in enumerate(tensors):
        assert_agrees(result, numpy_of(tensor), row, tensor.numel())
    result = batch.collect()
    for row, tensor in enumerate(tensors[:50]):
        assert_agrees(result, numpy_of(tensor), row, tensor.numel())


@needs_compiler
def test_several_threads_share_a_batch() -> None:
    batch = TorchBatch()
    found: dict[int, np.ndarray] = {}

    def work(first: int) -> None:
        for size in range(first, 4000, 4):
            tensor = torch.arange(size, dtype=torch.float32) if size % 3 else torch.arange(2 * size).float()[::2]
            found[batch.add(tensor)] = tensor.numpy()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = batch.collect()
    assert sorted(found) == list(range(3999))
    for row in range(0, 3999, 97):
        assert_agrees(result, found[row], row)


@needs_compiler
def test_a_batch_grows_while_numpy_and_the_compiled_form_take_turns() -> None:
    batch, tensors = TorchBatch(), []
    for turn in range(700):
        name = ("float32", "float8_e4m3fn", "uint16", "bfloat16")[turn % 4]
        tensors.append(tensor_of_normals(name, 1 + turn * 7, turn))
        batch.add(tensors[-1])
    result = batch.collect()
    for row in range(0, 700, 13):
        assert_agrees(result, numpy_of(tensors[row]), row)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.float16])
def test_it_does_not_matter_how_many_threads_there_are(dtype: torch.dtype) -> None:
    part = 1 << 17  # elements that are added up by one thread
    content = (torch.randn(5 * part + 77, dtype=torch.float64) * 40).abs().to(dtype)
    content[::1001] = 0
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            batch = TorchBatch()
            for size in (part, part + 1, 2 * part, 5 * part + 77):
                batch.add(content[:size])
            found.append(batch.collect())
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for name in ("mean", "l2", "min", "max", "zero", "hash", "sketch"):
            np.testing.assert_array_equal(getattr(found[0], name), getattr(other, name))
