from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import load_file

from numscope.core.errors import RunError
from numscope.store.batch import OnDevice
from numscope.store.shards import Shard, key_of_view
from numscope.store.writing import shard_writer
from numscope.store.writing.shard_writer import Kept, ShardWriter

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def keep(array: np.ndarray, hash_: int | None = None, sampled: bool = False, shape: Any = None) -> Kept:
    return Kept(hash_, array.dtype.name, array.shape if shape is None else shape, sampled, array)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = dtype_of(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if dtype.kind == "b":
        raw = raw % 2
    return raw.view(dtype).reshape(shape)


@given(st.lists(arrays(), min_size=1, max_size=6))
def test_every_bit_of_every_dtype_and_shape_comes_back(tmp_path_factory: Any, values: list[np.ndarray]) -> None:
    directory = tmp_path_factory.mktemp("shards")
    writer = ShardWriter(directory)
    places = writer.add([keep(value) for value in values])
    writer.close()
    for value, (shard, key) in zip(values, places):
        back = Shard(directory / shard).array(key, value.dtype.name, value.shape)
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        assert back.tobytes() == value.tobytes()
        assert back.flags.aligned


def test_a_shard_that_may_not_be_read_says_what_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RunError, match=r"000000.safetensors: Permission denied: check its permissions$"):
        Shard(tmp_path / "000000.safetensors")


def test_the_safetensors_package_reads_a_shard_after_every_write(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    expected = {}
    for n in range(5):
        values = [np.arange(n + 1, dtype=np.float32), np.array(n, np.int64), np.zeros((0, 3), np.float16)]
        for value, (_, key) in zip(values, writer.add([keep(value) for value in values])):
            expected[key] = value
        loaded = load_file(tmp_path / "000000.safetensors")
        assert loaded.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(loaded[key], value)
    writer.close()


def test_torch_reads_bf16_and_fp8_of_a_shard(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = [np.arange(4).astype(ml_dtypes.bfloat16), np.arange(4).astype(ml_dtypes.float8_e4m3fn)]
    writer = ShardWriter(tmp_path)
    places = writer.add([keep(value) for value in values])
    with safe_open(tmp_path / places[0][0], "pt") as file:
        assert file.get_tensor(places[0][1]).dtype == torch.bfloat16
        assert file.get_tensor(places[1][1]).to(torch.float32).tolist() == [0, 1, 2, 3]


def test_equal_content_is_stored_once_whatever_its_shape_and_other_dtypes_and_samples_apart(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    value = np.arange(6, dtype=np.float32)
    same, again = writer.add([keep(value, 7), keep(value.copy(), 7)])
    assert same == again
    assert writer.add([keep(value, 7), keep(value.reshape(2, 3), 7), keep(value.reshape(1, 6, 1), 7)]) == [same] * 3
    other = writer.add(
        [keep(value.view(np.int32), 7), keep(value[:2], 7, True, (6,)), keep(value[:2], 7, True, (2, 3))]
    )
    assert len({same, *other}) == 4
    writer.close()
    shard = Shard(tmp_path / same[0])
    assert len(shard.keys()) == 4
    np.testing.assert_array_equal(shard.array(same[1], "float32", (2, 3)), value.reshape(2, 3))
    np.testing.assert_array_equal(shard.array(other[1][1], "float32"), value[:2])


def test_a_strided_or_reversed_array_is_stored_in_its_own_order(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    base = np.arange(24, dtype=np.int16).reshape(4, 6)
    views = [base.T, base[::-1, ::2], np.broadcast_to(base[0], (3, 6)), np.asfortranarray(base)]
    for view, (shard, key) in zip(views, writer.add([keep(view) for view in views])):
        np.testing.assert_array_equal(Shard(tmp_path / shard).array(key, "int16", view.shape), view)


def test_shards_roll_by_size_and_each_is_whole(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, shard_bytes=1000)
    values = [np.full(100, n, np.float32) for n in range(6)]
    places = writer.add([keep(value) for value in values])
    writer.close()
    assert [shard for shard, _ in places] == [f"{n // 2:06d}.safetensors" for n in range(6)]
    for value, (shard, key) in zip(values, places):
        np.testing.assert_array_equal(load_file(tmp_path / shard)[key], value)


def test_shards_roll_when_the_room_for_the_header_is_used(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    values = [np.array([n], np.int32) for n in range(3000)]
    places = writer.add([keep(value, n) for n, value in enumerate(values)])
    assert {shard for shard, _ in places} == {"000000.safetensors", "000001.safetensors"}
    assert int(load_file(tmp_path / places[-1][0])[places[-1][1]][0]) == 2999


def test_one_tensor_larger_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, shard_bytes=100)
    (shard, key), _ = writer.add([keep(np.zeros(1000)), keep(np.ones(3))])
    assert load_file(tmp_path / shard)[key].shape == (1000,)


def test_arrays_are_views_of_the_file_and_read_only(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    ((shard, key),) = writer.add([keep(np.arange(10.0))])
    back = Shard(tmp_path / shard).array(key, "float64", (10,))
    assert not back.flags.owndata
    assert not back.flags.writeable


def test_a_header_cut_off_by_a_kill_gives_its_complete_entries(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    (shard, first), (_, second) = writer.add([keep(np.arange(3.0)), keep(np.arange(4.0))])
    writer.close()
    path = tmp_path / shard
    data = bytearray(path.read_bytes())
    at = data.index(b'"data_offsets"', data.index(second.encode()))
    data[at : 8 + int.from_bytes(data[:8], "little")] = b" " * (8 + int.from_bytes(data[:8], "little") - at)
    path.write_bytes(data)
    np.testing.assert_array_equal(Shard(path).array(first, "float64", (3,)), np.arange(3.0))
    with pytest.raises(RunError, match="no entry"):
        Shard(path).array(second, "float64", (4,))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda path: path.unlink(), "is missing: copy it"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-8]), "8 bytes are cut off its end"),
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "header is cut off"),
        (lambda path: path.write_bytes(b"\x08" + b"\0" * 7 + b"garbage!" * 9), "header is not JSON"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path: Path, harm: Any, says: str) -> None:
    writer = ShardWriter(tmp_path)
    ((shard, key),) = writer.add([keep(np.arange(10.0))])
    writer.close()
    harm(tmp_path / shard)
    with pytest.raises(RunError, match=says) as caught:
        Shard(tmp_path / shard).array(key, "float64", (10,))
    assert shard in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_tables_and_the_shard_must_agree_on_the_size(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    ((shard, key),) = writer.add([keep(np.arange(10.0))])
    with pytest.raises(RunError, match="10 elements, the tables say"):
        Shard(tmp_path / shard).array(key, "float64", (11,))


def test_the_header_names_the_format(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    ((shard, _),) = writer.add([keep(np.arange(3.0))])
    data = (tmp_path / shard).read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "numscope.run/1"}


@given(st.data())
def test_elements_of_an_entry_come_back_as_numpy_picks_them(tmp_path_factory: Any, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("shards")
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    base = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    picked = base[data.draw(hnp.basic_indices(shape, allow_newaxis=True).filter(lambda index: base[index].size > 0))]
    picked = np.transpose(picked, data.draw(st.permutations(range(np.ndim(picked)))))
    if any(stride < 0 for stride in picked.strides):  # torch has no such views
        return
    writer = ShardWriter(directory)
    ((shard, key),) = writer.add([keep(base)])
    writer.close()
    offset = (picked.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 4
    if not np.shares_memory(picked, base):  # one element alone is a copy
        offset = int(picked.reshape(-1)[0])
    place = key_of_view(key, offset, [stride // 4 for stride in picked.strides])
    found = Shard(directory / shard).array(place, "float32", picked.shape)
    assert found.shape == picked.shape
    assert found.tobytes() == picked.tobytes()
    assert found.flags.aligned
    assert not found.flags.writeable


@pytest.mark.parametrize("part", ["[0:13]", "[12:1]", "[-1:1]", "[0:1,1]", "[x:1]", "[0:", "[]"])
def test_elements_that_an_entry_does_not_have_are_an_error(tmp_path: Path, part: str) -> None:
    writer = ShardWriter(tmp_path)
    ((shard, key),) = writer.add([keep(np.arange(12, dtype=np.float32))])
    writer.close()
    with pytest.raises(RunError, match="is damaged"):
        Shard(tmp_path / shard).array(f"{key}{part}", "float32", (2,))


def test_much_at_once_goes_to_several_shards_and_little_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numscope.store.writing.shard_writer._RUN", 1000)
    monkeypatch.setattr("numscope.store.writing.shard_writer._MANY", 2000)
    go = threading.Event()
    write = shard_writer._write
    monkeypatch.setattr("numscope.store.writing.shard_writer._write", lambda *job: (go.wait(), write(*job))[1])
    writer = ShardWriter(tmp_path, lanes=3)
    values = [np.full(100, n, np.float32) for n in range(60)]
    places, jobs = writer.start([keep(value) for value in values])
    assert {shard for shard, _ in places} == {"000000.safetensors", "000001.safetensors", "000002.safetensors"}
    assert not any(job.is_done for job in jobs)
    go.set()
    for job in jobs:
        job.wait()
    assert writer.add([keep(np.zeros(1))])[0][0] == "000000.safetensors"  # the first is as free as the others
    writer.close()
    for value, (shard, key) in zip(values, places):
        np.testing.assert_array_equal(load_file(tmp_path / shard)[key], value)


def test_what_is_on_a_device_is_fetched_where_it_is_new_and_only_then(tmp_path: Path) -> None:
    fetched: list[str] = []

    def fetch(data: Any) -> Any:
        for name, array in data:
            fetched.append(name)
            yield from (array.reshape(-1).view(np.uint8).data[at : at + 3] for at in range(0, array.nbytes, 3))

    def there(name: str, array: np.ndarray, hash_: int | None) -> Kept:
        away = OnDevice(array.dtype, array.shape, (name, array), fetch)
        return Kept(hash_, array.dtype.name, array.shape, False, away)

    a, b, c = np.arange(5, dtype=np.float32), np.arange(6.0).reshape(2, 3), np.array(7, np.int16)
    writer = ShardWriter(tmp_path)
    places = writer.add(
        [there("a", a, 1), keep(c, 3), there("b", b, 2), there("a again", a, 1), there("unknown", c, None)]
    )
    assert places[0] == places[3]
    assert sorted(fetched) == ["a", "b", "unknown"]
    writer.add([there("b again", b, 2)])
    writer.close()
    assert len(fetched) == 3
    for value, (shard, key) in zip([a, c, b, a, c], places):
        np.testing.assert_array_equal(Shard(tmp_path / shard).array(key, value.dtype.name, value.shape), value)
