"""A comparison of another tool's dump: statistics bound the error, a foreign hash is no hash of ours."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import numscope as ns
from numscope.__main__ import main
from numscope.compat.msprobe import PrecisionDebugger
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor, write_run


class Net(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.gelu(self.first(x), approximate=self.approximate))


def batch() -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("imported")
    found = {}
    for name, approximate in (("good", "none"), ("bad", "tanh")):
        net = Net(approximate)
        with ns.capture(root / name, net) as cap:
            net(batch()).sum().backward()
            cap.step()
        found[name] = root / name
        for mode in ("statistics", "md5"):
            dump = root / f"{name}_{mode}_dump"
            debugger = PrecisionDebugger(dump_path=dump, level="mix", task="statistics", model=net)
            if mode == "md5":
                object.__setattr__(debugger._options, "md5", True)
            net.zero_grad()
            debugger.start()
            net(batch()).sum().backward()
            debugger.stop()
            debugger.step()
            assert main(["import", str(dump), str(root / f"{name}_{mode}")]) == 0
            found[f"{name} {mode}"] = root / f"{name}_{mode}"
    return found


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("bad statistics", "good statistics"),
        ("bad statistics", "good"),
        ("bad", "good statistics"),
        ("bad md5", "good md5"),
    ],
)
def test_the_origin_is_found_from_statistics_alone(runs: dict[str, Path], target: str, reference: str) -> None:
    comparison = ns.compare(runs[target], runs[reference])
    assert comparison.verdict == "diverged"
    assert comparison.origin is not None
    assert comparison.origin.call == "Functional.gelu.0.forward"


@pytest.mark.parametrize(
    ("target", "reference", "verdict"),
    [
        ("good statistics", "good statistics", "equivalent"),  # equal statistics are no proof of equal bits
        ("good statistics", "good", "equivalent"),
        ("good md5", "good md5", "identical"),
        ("good md5", "good", "equivalent"),  # a checksum is not comparable with a hash
    ],
)
def test_equal_runs_are_no_more_than_can_be_known(
    runs: dict[str, Path], target: str, reference: str, verdict: str
) -> None:
    comparison = ns.compare(runs[target], runs[reference])
    assert comparison.verdict == verdict, comparison.report


@given(
    st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=20),
    st.floats(-1, 1, width=32),
    st.integers(0, 19),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_bound_is_never_above_the_true_error(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], change: float, place: int, has_l2: bool
) -> None:
    reference = np.array(values, np.float32)
    target = reference.copy()
    target[place % len(target)] += np.float32(change)

    def run(path: Path, array: Any) -> Path:
        wide = array.astype(np.float64)
        tensor = ForeignTensor(
            "float32",
            array.shape,
            min=wide.min(),
            max=wide.max(),
            mean=wide.mean(),
            l2=float(np.linalg.norm(wide)) if has_l2 else None,
        )
        calls = [ForeignCall("Torch.exp.0.forward", [("output.0", tensor)])]
        write_run(path, Dump("test", [ForeignStep(0, 0, calls)]))
        return path

    root = tmp_path_factory.mktemp("bound")
    row = ns.compare(run(root / "a", target), run(root / "b", reference)).pairs.to_pylist()[0]
    shutil.rmtree(root)
    true = float(np.linalg.norm(target.astype(np.float64) - reference.astype(np.float64)))
    assert row["euclid"] <= true * (1 + 1e-9) + 1e-12
    if row["relative_l2"] and np.linalg.norm(reference):
        assert row["relative_l2"] <= true / np.linalg.norm(reference.astype(np.float64)) * (1 + 1e-9)
    assert row["estimated"]


@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("wrong", [True, False])
def test_the_origin_is_found_in_dumps_that_hold_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: bool, wrong: bool
) -> None:
    """ptdbg's every second element with max, min and mean, and torch_npu's ten elements with the same."""
    from numscope.compat import ptdbg_ascend, torch_npu_hooks
    from numscope.compat.ptdbg_ascend import dump
    from numscope.compat.torch_npu_hooks import hooks

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    first, second, x = nn.Linear(40, 40), nn.Linear(40, 40), torch.randn(40, 40)
    for side in ("npu", "gpu"):
        tool = torch_npu_hooks if sample else ptdbg_ascend
        tool.set_dump_path(f"./{side}.pkl")
        if sample:
            torch_npu_hooks.register_hook(first, torch_npu_hooks.wrap_acc_cmp_hook)
        else:
            ptdbg_ascend.register_hook(first, ptdbg_ascend.acc_cmp_dump, dump_step=2)
            ptdbg_ascend.set_dump_switch("ON")
        hidden = nn.functional.gelu(first(x), approximate="tanh" if wrong and side == "npu" else "none")
        second(hidden.clone()).pow(2).sum().backward()
        (hooks if sample else dump)._at_exit()
        main(["import", f"{side}.pkl", f"run_{side}"])
    hooks._state, dump._state = hooks._State(), dump._State()
    comparison = ns.compare("run_npu", "run_gpu")
    assert comparison.verdict == ("diverged" if wrong else "equivalent"), comparison.report
    if wrong:
        assert comparison.origin.call == "Functional.gelu.0.forward"
        assert comparison.report.counts["origin"] == 1
    assert "calls of which nothing was measured" not in comparison.report.coverage["skipped"]
