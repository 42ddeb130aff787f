"""A view of a kept tensor is kept as a view, and reads back bit for bit whatever was done to its base."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import numscope as ns
from numscope.capture.recording import recorder
from numscope.capture.torch.identity.subclasses import to_numpy


def arrays_of(path: Path, body: Callable[[ns.Capture], None]) -> ns.Run:
    with ns.capture(path, torch.nn.Identity(), level="api", keep="tensors", on_error="raise") as cap:
        body(cap)
        cap.step()
    return ns.open_run(path)


def kept_bytes(path: Path) -> int:
    return sum(file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little") for file in shards(path))


def shards(path: Path) -> list[Path]:
    return sorted(path.rglob("*.safetensors"))


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(1, 2, 0),
    "reshaped": lambda x: x.view(6, -1),
    "one of the first dimension": lambda x: x[1],
    "every other": lambda x: x[:, ::2],
    "a column": lambda x: x[:, 1:2, 3],
    "one element": lambda x: x[1, 2, 3],
    "expanded": lambda x: x[:, :, :1].expand(-1, -1, 9),
    "a diagonal": lambda x: x.diagonal(dim1=0, dim2=1),
    "windows": lambda x: x.unfold(2, 3, 1),
    "of a view": lambda x: x.transpose(0, 1)[1:].flatten(1),
    "empty": lambda x: x[:0],
    "negative": lambda x: torch._neg_view(x.transpose(0, 1)),
}


@pytest.mark.parametrize("what", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_views_read_back_bit_for_bit_and_take_no_bytes(tmp_path: Path, what: str, dtype: torch.dtype) -> None:
    base = (torch.randn(4, 3, 5) * 100).to(dtype)
    made = VIEWS[what](base)

    def body(cap: ns.Capture) -> None:
        cap.save("base", base)
        cap.save("view", made)

    run = arrays_of(tmp_path / "run", body)
    expected = to_numpy(made.resolve_neg().clone(memory_format=torch.contiguous_format))
    found = run.tensor("Save.view.0.forward.output.0")
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
    assert found.flags.c_contiguous
    assert not found.flags.writeable or not found.size
    own = what == "negative" or (what == "of a view" and made._base is None)
    assert kept_bytes(tmp_path / "run") == base.nbytes + (made.nbytes if own else 0)


def test_a_base_that_was_written_to_since_does_not_stand_for_its_views(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    before = base.t().clone()

    def body(cap: ns.Capture) -> None:
        cap.save("base", base)
        cap.save("before", base.t())
        base.add_(1)
        cap.save("after", base.t())

    run = arrays_of(tmp_path / "run", body)
    np.testing.assert_array_equal(run.tensor("Save.before.0.forward.output.0"), before.numpy())
    np.testing.assert_array_equal(run.tensor("Save.after.0.forward.output.0"), base.t().numpy())


def test_memory_shared_without_a_common_version_is_kept_apart(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    other = torch.nn.Parameter(base)  # the same memory, with a version of its own

    def body(cap: ns.Capture) -> None:
        cap.save("base", base)
        with torch.no_grad():
            base.add_(1)
            cap.save("other", other.t())

    run = arrays_of(tmp_path / "run", body)
    np.testing.assert_array_equal(run.tensor("Save.other.0.forward.output.0"), base.t().numpy())


def test_a_view_of_what_an_earlier_batch_holds_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_BYTES", 16)  # every call is a batch of its own
    base = torch.randn(3, 4)

    def body(cap: ns.Capture) -> None:
        cap.save("base", base)
        torch.relu(base)
        torch.relu(base[1])

    for _ in range(2):  # a second step finds the content in the first one's place
        run = arrays_of(tmp_path / f"run{_}", body)
        np.testing.assert_array_equal(run.tensor("Torch.relu.1.forward.input.0"), base[1].numpy())


def test_the_parts_of_a_model_take_their_bytes_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    inputs = torch.randn(2, 8, 16)
    with ns.capture(tmp_path / "run", model, level="mix", keep="tensors", on_error="raise") as cap:
        model(inputs, inputs, inputs, need_weights=False)[0].sum().backward()
        cap.step()
    run = ns.open_run(tmp_path / "run")
    keys = run.step_tables(0, 0).tensors["key"].to_pylist()
    assert any(key.endswith("]") for key in keys)
    rows = run.step_tables(0, 0).tensors.to_pylist()
    from numscope.fingerprint.definition import fingerprint

    for row in rows:  # the fingerprint was taken from the tensor itself
        array = run.array(0, row["shard"], row["key"], row["dtype"], tuple(row["shape"]))
        assert int(fingerprint(array).hash[0]) == row["hash"]


@pytest.mark.parametrize("level", ["mix", "aten"])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    ],
)
def test_what_an_optimizer_s_lists_leave_is_kept_as_it_is_then(tmp_path: Path, level: str, optimizer: Callable) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    steps = optimizer(model.parameters())
    left = []
    with ns.capture(tmp_path / "run", model, level=level, keep="tensors", on_error="raise") as cap:
        for _ in range(2):
            steps.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            steps.step()
            left.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
            cap.step()
    run = ns.open_run(tmp_path / "run")
    for number, parameters in enumerate(left):
        for name, parameter in parameters.items():
            kept = run.tensor(f"Optimizer.{type(steps).__name__}.step.0.output.{name}", step=number)
            np.testing.assert_array_equal(kept, parameter.numpy())
