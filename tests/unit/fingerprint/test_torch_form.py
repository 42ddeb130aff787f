"""The torch form inside a program: what it refuses, leaves alone, and stands."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from numscope.fingerprint.torch_content import _pieces
from numscope.fingerprint.torch_form import TorchBatch
from tests.unit.fingerprint.agreement import assert_agrees, numpy_of


@pytest.fixture(autouse=True, params=["compiled", "numpy"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is tested here holds with and without a compiler."""
    if request.param == "numpy":
        monkeypatch.setattr("numscope.fingerprint.torch_form.load", lambda: None)


def _fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


REFUSED = {
    "sparse": lambda: torch.eye(3).to_sparse_coo(),
    "sparse_csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.empty(3, device="meta"),
    "Fake": _fake,
    "quint8": lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_strided_data_is_refused_with_the_reason(name: str) -> None:
    batch = TorchBatch()
    batch.add(torch.ones(3))
    with pytest.raises(TypeError, match=name):
        batch.add(REFUSED[name]())
    batch.add(torch.ones(3))
    assert len(batch.collect()) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_of_vmap_is_refused() -> None:
    batch = TorchBatch()
    batch.add(torch.ones(3))

    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(TypeError, match="has no data"):
            batch.add(x)
        return x

    torch.vmap(inside)(torch.ones(2, 3))


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no packed dtypes")
def test_packed_dtypes_are_measured_as_bytes() -> None:
    raw = torch.arange(100, dtype=torch.uint8)
    batch = TorchBatch()
    batch.add(raw.view(torch.float4_e2m1fn_x2))
    batch.add(raw)
    result = batch.collect()
    assert_agrees(result, raw.numpy(), 0)
    assert_agrees(result, raw.numpy(), 1)


def test_rows_begin_anew_after_collect() -> None:
    batch = TorchBatch()
    assert (batch.add(torch.ones(3)), batch.add(torch.zeros(100_000))) == (0, 1)
    first = batch.collect()
    assert batch.add(torch.full((3,), 2.0)) == 0
    second = batch.collect()
    assert (first.max.tolist(), second.max.tolist()) == ([1.0, 0.0], [2.0])
    assert len(batch.collect()) == 0


def test_rows_flushed_may_be_waited_for_later_and_elsewhere() -> None:
    batch = TorchBatch()
    batch.add(torch.ones(3))
    first = batch.flush()
    assert batch.add(torch.full((3,), 2.0)) == 0
    second = batch.flush()
    results = {}
    thread = threading.Thread(target=lambda: results.update(second=second(), first=first()))
    thread.start()
    thread.join()
    assert (results["first"].max.tolist(), results["second"].max.tolist()) == ([1.0], [2.0])


def test_a_tensor_may_change_after_it_was_added() -> None:
    small, large = torch.ones(100), torch.ones(100_000)
    batch = TorchBatch()
    batch.add(small)
    batch.add(large)
    small.zero_()
    large.zero_()
    result = batch.collect()
    assert result.min.tolist() == [1.0, 1.0]


def test_a_shorter_content_sees_nothing_of_a_longer_one_before_it() -> None:
    batch = TorchBatch()
    for size in (64, 40, 64, 3):
        for _ in range(2):
            batch.add(torch.full((size,), 7.0))
            assert_agrees(batch.collect(), np.full(size, 7.0, np.float32))


def test_more_contents_than_a_block_holds() -> None:
    tensors = [torch.full((16384,), float(number)) for number in range(11)]
    batch = TorchBatch()
    for tensor in tensors:
        batch.add(tensor)
    result = batch.collect()
    assert result.max.tolist() == list(map(float, range(11)))


@pytest.mark.parametrize("size", [10, 100_000])
def test_gradients_modes_and_random_numbers_are_left_alone(size: int) -> None:
    batch = TorchBatch()
    leaf = torch.randn(size, requires_grad=True)
    state = torch.get_rng_state()
    product = leaf * 2
    version, node = product._version, product.grad_fn
    for tensor in (leaf, product, product.view(2, -1).T, torch.nn.Parameter(torch.ones(size))):
        batch.add(tensor)
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert (product._version, product.grad_fn) == (version, node)
    product.sum().backward()
    assert torch.equal(leaf.grad, torch.full((size,), 2.0))
    assert_agrees(batch.collect(), numpy_of(product), 1)


@pytest.mark.parametrize("shape", [(3,), (300, 1000), (1000, 300)])
def test_a_storage_can_be_given_another_size_after_it_was_measured(shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape)
    batch = TorchBatch()
    for one in (tensor, tensor.t() if tensor.dim() == 2 else tensor, tensor[1:]):
        batch.add(one)
    batch.collect()
    tensor.untyped_storage().resize_(0)


def test_inference_tensors() -> None:
    batch = TorchBatch()
    with torch.inference_mode():
        made = torch.ones(10) * 2
        batch.add(made)
        batch.add(made.expand(3, 10))
    batch.add(made)
    batch.add(made.expand(3, 10))
    batch.add(torch.ones(10))
    assert batch.collect().l2.tolist() == pytest.approx([40**0.5, 120**0.5, 40**0.5, 120**0.5, 10**0.5])


def test_several_threads_may_add() -> None:
    batch = TorchBatch()
    rows: dict[int, float] = {}

    def work(number: int) -> None:
        for size in range(1, 200):
            value = float(number * 1000 + size)
            rows[batch.add(torch.full((size * (300 if size % 50 == 0 else 1),), value))] = value

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = batch.collect()
    assert len(result) == len(rows) == 4 * 199
    assert all(result.max[row] == value == result.min[row] for row, value in rows.items())


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    tensor = torch.randn(500_000)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        batch = TorchBatch()
        batch.add(tensor)
        results.append(batch.collect())
    torch.set_num_threads(before)
    assert results[0].l2[0] == results[1].l2[0]
    assert (results[0].sketch == results[1].sketch).all()


def test_pieces_of_more_than_2_31_elements_follow_one_another() -> None:
    tensor = torch.ones(1, dtype=torch.uint8).expand(3, 2**30, 2)  # all in one place: only the indices are large
    pieces = [piece.shape for piece in _pieces(tensor, 2**29)]
    assert pieces == [(2**28, 2)] * 12


def test_tensors_measured_together_are_those_measured_one_by_one() -> None:
    batch = TorchBatch()
    tensors = [torch.randn(size) for size in (3, 1000, 70_000)] + [torch.arange(5), torch.randn(4, 6).T]
    alone = [batch.add(tensor) for tensor in tensors]
    with batch.together():
        many = [batch.add(tensor) for tensor in tensors]
    found = batch.collect()
    assert found.hash[alone].tolist() == found.hash[many].tolist()
    assert many == list(range(len(tensors), 2 * len(tensors)))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 7), (300, 40), (64, 1100)])
def test_tensors_that_are_said_to_be_alike_are_measured_as_any_others(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    batch = TorchBatch()
    added = []
    for seed in range(3):
        torch.manual_seed(seed)
        value = torch.randn(shape, dtype=torch.float64).mul(3).to(dtype)
        for tensor in (value, value.mT if value.dim() > 1 else value, value.requires_grad_(dtype.is_floating_point)):
            added.append((batch.add_alike(tensor, (dtype, tensor.shape, tensor.stride())), numpy_of(tensor)))
    result = batch.collect()
    for row, array in added:
        assert_agrees(result, array, row)


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_of_vmap_is_refused_even_if_it_is_said_to_be_like_one_that_was_measured() -> None:
    batch = TorchBatch()
    batch.add_alike(torch.ones(3), "alike")

    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(TypeError, match="has no data"):
            batch.add_alike(x, "alike")
        return x

    torch.vmap(inside)(torch.ones(2, 3))
    assert batch.add_alike(torch.ones(3), "alike") == 1
    assert len(batch.collect()) == 2


def test_what_torch_has_put_off_is_measured_each_time_it_is_said_to_be_alike() -> None:
    batch = TorchBatch()
    values = [torch.randn(50, dtype=torch.complex64).conj() for _ in range(3)]
    pairs = [(key, tensor) for value in values for key, tensor in (("c", value), ("i", value.imag))]
    added = [(batch.add_alike(tensor, key), tensor) for key, tensor in pairs]
    result = batch.collect()
    for row, tensor in added:
        assert_agrees(result, numpy_of(tensor.resolve_conj().resolve_neg()), row)
