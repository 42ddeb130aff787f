"""A front end is `Frontend` and a row of the table of frameworks: the smallest one records runs that compare."""

from __future__ import annotations

import types
from pathlib import Path

import numpy as np
import pytest

import numscope as ns
from numscope.capture import frameworks, session
from numscope.capture.frameworks import Framework
from numscope.core.errors import SettingsError
from tests.unit.capture.numpy_frontend import FUNCTIONS, NumpyFrontend


class Net:
    """A layer of numpy; `slope` is where two runs differ."""

    def __init__(self, slope: float) -> None:
        self.weight = np.random.default_rng(0).standard_normal((8, 8))
        self.slope = slope

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(np.multiply(np.matmul(x, self.weight), self.slope))


@pytest.fixture(autouse=True)
def numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "numscope_nets", types.SimpleNamespace(Net=Net), raising=False)
    monkeypatch.setattr(session, "FRAMEWORKS", (Framework("numpy", "numscope_nets.Net", ("numpy",)),))
    monkeypatch.setitem(session._FRONTENDS, "numpy", NumpyFrontend)


def record(path: Path, slope: float) -> np.ndarray:
    net, x = Net(slope), np.random.default_rng(1).standard_normal((4, 8))
    with ns.capture(path, net) as cap:
        for _ in range(2):
            x = net(x)
            cap.save("x", x)
            cap.step()
    return x


def test_it_changes_no_bit_and_is_undone_at_the_end(tmp_path: Path) -> None:
    plain = [getattr(np, name) for name in FUNCTIONS]
    net, x = Net(1.0), np.random.default_rng(1).standard_normal((4, 8))
    for _ in range(2):
        x = net(x)
    assert record(tmp_path / "run", 1.0).tobytes() == x.tobytes()
    assert [getattr(np, name) for name in FUNCTIONS] == plain


def test_its_runs_are_compared_and_the_origin_is_named_with_its_line(tmp_path: Path) -> None:
    record(tmp_path / "target", 1.01)
    record(tmp_path / "again", 1.0)
    record(tmp_path / "reference", 1.0)
    run = ns.open_run(tmp_path / "target")
    assert run.manifest["framework"] == "numpy"
    assert ns.compare(tmp_path / "again", tmp_path / "reference").verdict == "identical"
    found = ns.compare(tmp_path / "target", tmp_path / "reference")
    assert found.verdict == "diverged"
    assert found.origin is not None
    assert found.origin.call == "Numpy.multiply.0.forward"
    assert found.origin.source is not None
    assert Path(found.origin.source.file).name == "test_frontend.py"


def test_what_no_framework_has_made_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pass an nn\.Module or a paddle Layer, or import "):
        ns.capture(tmp_path / "run", object())


def test_every_framework_of_the_table_has_a_front_end() -> None:
    assert {framework.name for framework in frameworks.FRAMEWORKS} <= set(session._FRONTENDS)
