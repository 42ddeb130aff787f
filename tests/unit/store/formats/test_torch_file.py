"""Torch's files are read and written without torch, and nothing that a file says is run."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.core.errors import RunError
from numscope.store.formats import torch_file

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def test_what_torch_saves_is_read_as_numpy(tmp_path: Path) -> None:
    value = {
        "transposed": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "bf16": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
        "fp8": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "nested": [torch.tensor([True, False]), {"x": torch.arange(3)}],
        "complex": torch.tensor([1 + 2j]),
    }
    torch.save(value, tmp_path / "a.pt")
    read = torch_file.load(tmp_path / "a.pt")
    np.testing.assert_array_equal(read["transposed"], value["transposed"].numpy())
    assert read["scalar"].shape == ()
    assert read["scalar"] == 1.5
    assert read["empty"].shape == (0, 3)
    assert read["bf16"].dtype == ml_dtypes.bfloat16
    assert read["bf16"].astype(float).tolist() == [1.5, -2.25]
    assert read["fp8"].dtype == ml_dtypes.float8_e4m3fn
    assert read["fp8"].astype(float).tolist() == [1.5, -2.0]
    assert read["parameter"].tolist() == [1.0, 1.0]
    assert read["nested"][0].dtype == bool
    assert read["nested"][1]["x"].tolist() == [0, 1, 2]
    assert read["complex"].tolist() == [1 + 2j]


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int8",
        "uint8",
        "bool",
        "uint16",
        "float8_e5m2",
        "complex64",
    ],
)
def test_what_we_write_torch_reads_with_weights_only(tmp_path: Path, dtype: str) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    array = np.arange(6).reshape(2, 3).astype(kind)
    torch_file.save(tmp_path / "a.pt", {"x": array, "y": [array.T, None, "é", 2**40, -1.25]})
    read = torch.load(tmp_path / "a.pt", weights_only=True)
    assert str(read["x"].dtype) == f"torch.{dtype}"
    assert (
        read["x"].to(torch.complex64 if "complex" in dtype else torch.float64).tolist()
        == array.astype(complex if "complex" in dtype else float).tolist()
    )
    assert read["y"][0].shape == (3, 2)
    assert read["y"][1:] == [None, "é", 2**40, -1.25]
    again = torch_file.load(tmp_path / "a.pt")
    assert again["x"].dtype == array.dtype
    assert again["x"].tobytes() == array.tobytes()


@given(PLAIN)
@settings(max_examples=50, deadline=None)
def test_plain_values_go_through_unchanged(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    file = tmp_path_factory.mktemp("pt") / "v.pt"
    torch_file.save(file, value)
    assert torch_file.load(file) == value
    assert torch.load(file, weights_only=True) == value


class Evil:
    """Runs a command while it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["EVIL"],)


def test_a_file_that_runs_code_is_refused_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "made"
    monkeypatch.setenv("EVIL", str(target))
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(Evil(), 2))
    with pytest.raises(RunError, match="--trust-pickle"):
        torch_file.load(tmp_path / "a.pt")
    assert not target.exists()
    torch_file.load(tmp_path / "a.pt", trust_pickle=True)
    assert target.exists()


def test_a_tensor_that_reaches_beyond_its_storage_is_damage(tmp_path: Path) -> None:
    torch_file.save(tmp_path / "a.pt", np.arange(4.0))
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:8] if name.endswith("data/0") else content)
    with pytest.raises(RunError, match="damaged"):
        torch_file.load(tmp_path / "b.pt")


def test_another_file_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"no zip")
    with pytest.raises(RunError, match="torch's zip format"):
        torch_file.load(tmp_path / "a.pt")
