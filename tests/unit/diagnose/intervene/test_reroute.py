"""to_cpu runs things elsewhere, gives their results back as they would have been, and leaves no trace."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import numscope as ns
from numscope.diagnose.pytree import tree_map

seen: list[torch.dtype] = []


def warp(scores: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
    """A callable of the user's own, which tells in which dtype it ran."""
    seen.append(scores.dtype)
    return scores * factor


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


def test_a_function_runs_in_the_dtype_and_its_result_has_the_source_dtype() -> None:
    result = ns.to_cpu(warp, dtype=torch.float64)(torch.ones(3))
    assert seen == [torch.float64]
    assert result.dtype == torch.float32
    assert result.tolist() == [2, 2, 2]


def test_it_decorates_with_and_without_arguments() -> None:
    @ns.to_cpu
    def plain(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return x + 1

    @ns.to_cpu(dtype="float64")
    def lifted(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return x + 1

    class Holder:
        @ns.to_cpu(dtype="float64")
        def method(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.dtype)
            return x + 1

    for call in (plain, lifted, Holder().method):
        assert call(torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert seen == [torch.bfloat16, torch.float64, torch.float64]
    assert plain.__name__ == "plain"


def test_a_callable_is_rerouted_where_it_is_bound_and_put_back_on_leaving() -> None:
    original = warp
    with ns.to_cpu(warp, dtype="float64"):
        assert warp is not original
        warp(torch.ones(2))
    assert warp is original
    warp(torch.ones(2))
    assert seen == [torch.float64, torch.float32]


def test_a_third_party_callable_is_found_by_its_dotted_name(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("warpers")
    exec("def top(x):\n    return x, x.dtype", package.__dict__)
    monkeypatch.setitem(sys.modules, "warpers", package)
    with ns.to_cpu("warpers.top", dtype="float64"):
        result, dtype = package.top(torch.ones(2))
    assert (result.dtype, dtype) == (torch.float32, torch.float64)
    assert package.top(torch.ones(2))[1] == torch.float32


def test_a_torch_function_is_rerouted_wherever_it_was_imported() -> None:
    from torch.nn.functional import softmax as imported_before

    x = torch.randn(4, 50)
    exact = torch.softmax(x.double(), -1).float()
    with ns.to_cpu("torch.nn.functional.softmax", dtype="float64") as reroute:
        assert torch.equal(imported_before(x, dim=-1), exact)
        assert reroute.used == 1
    with ns.to_cpu("Functional.*softmax", dtype="float64") as reroute:
        F.log_softmax(x, dim=-1)
        F.relu(x)
        assert reroute.used == 1
    imported_before(x, dim=-1)
    assert reroute.used == 1


GELU = ("gelu", "*gelu*", "Functional.gelu", "Functional.gelu.*", "Functional.gelu.3.forward", "/g.lu/", "torch.nn.functional.*gelu",
        "Functional.gelu.3.forward.output.0", "Functional.gelu.0.*", "Functional.ge*", "torch.nn.functional.gelu")  # fmt: skip


@pytest.mark.parametrize("pattern", GELU)
def test_an_operator_is_found_by_the_patterns_of_a_scope(pattern: str) -> None:
    x = torch.randn(4, 50)
    with ns.to_cpu(pattern, dtype="float64") as reroute:
        assert torch.equal(F.gelu(x), F.gelu(x.double()).float())
        F.silu(x)
    assert reroute.used == 2  # the second is the test's own


@pytest.mark.parametrize(
    "pattern", ["0.2", "0.?", "Module.0.2.Tanh.forward.0", "Module.0.2.*", "*.Tanh.*", "/^Module.*Tanh/"]
)
def test_a_module_is_found_by_the_names_that_a_report_prints(pattern: str) -> None:
    net, x = model(), torch.randn(5, 6)
    kinds: dict[str, torch.dtype] = {}
    for path, module in net.named_modules():
        module.register_forward_hook(lambda module, args, out, path=path: kinds.update({path: args[0].dtype}))
    with ns.to_cpu(pattern, dtype="float64"):
        net(x)
    assert kinds["0.2"] == torch.float64
    assert kinds["0"] == torch.float32


def test_a_name_that_matches_nothing_is_told_after_one_step_with_the_nearest_names() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with ns.to_cpu(["gleu", "0.2", "1.x1"]) as reroute:
        F.gelu(net(torch.randn(5, 6))).sum().backward()
        with pytest.warns(RuntimeWarning) as told:
            optimizer.step()
        optimizer.step()
    assert reroute.used == 1
    assert [str(warning.message) for warning in told] == [
        "numscope: to_cpu(1.x1): nothing of that name was called in the first step; nearest are 1.1, 1.0, 0.1",
        "numscope: to_cpu(gleu): nothing of that name was called in the first step; nearest are Functional.gelu",
    ]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())
    return nn.Sequential(block, nn.Sequential(nn.Linear(6, 6), nn.Tanh()))


@pytest.mark.parametrize("pattern", ["0.*", "0", ["0.0", "0.1"]])
def test_modules_are_rerouted_by_path_with_gradients_and_buffers_as_they_should_be(pattern: object) -> None:
    x = torch.randn(5, 6)
    plain, rerouted = model(), model()
    plain(x).sum().backward()
    with ns.to_cpu(pattern, dtype="float64") as reroute:
        out = rerouted(x)
    assert reroute.used >= 1
    assert out.dtype == torch.float32
    out.sum().backward()
    for (name, a), b in zip(plain.named_parameters(), rerouted.parameters()):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, atol=1e-5), name
    for (name, a), b in zip(plain.named_buffers(), rerouted.buffers()):
        assert torch.allclose(a, b), name


def test_a_module_is_rerouted_by_identity_and_the_patch_is_undone() -> None:
    call = nn.Module.__call__
    net = model()
    kinds = []
    net[1][0].register_forward_hook(lambda module, args, out: kinds.append(out.dtype))
    with ns.to_cpu(net[1], dtype=torch.float64):
        net(torch.randn(3, 6))
    assert nn.Module.__call__ is call
    net(torch.randn(3, 6))
    assert kinds == [torch.float64, torch.float32]


def test_what_is_written_in_place_is_written_to_the_original() -> None:
    def shift(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out[0] = 7
        return x.add_(1)

    x, out = torch.zeros(3), torch.zeros(2)
    assert ns.to_cpu(shift, dtype="float64")(x, out) is x
    assert x.tolist() == [1, 1, 1]
    assert out.tolist() == [7, 0]
    with ns.to_cpu("torch.nn.functional.relu_", dtype="float64"):
        y = torch.tensor([-1.0, 2.0])
        assert F.relu_(y) is y
        assert y.tolist() == [0, 2]


def test_autograd_goes_through_an_in_place_function() -> None:
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 2
    ns.to_cpu(lambda t: t.mul_(3), dtype="float64")(x)
    x.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [6, 6, 6]


def test_a_list_that_serves_as_a_cache_gets_its_tensors_back() -> None:
    def append(x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        cache.append(x + 1)
        cache[0] = cache[0] * 2
        return x

    cache = [torch.ones(2)]
    ns.to_cpu(append, dtype="float64")(torch.ones(2), cache)
    assert [tensor.dtype for tensor in cache] == [torch.float32] * 2
    assert cache[0].tolist() == [2, 2]


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    rest: dict[str, list[torch.Tensor]]


def test_nested_structures_come_back_in_their_own_form() -> None:
    pair = Pair(torch.ones(2), {"a": [torch.ones(1)]})
    result = ns.to_cpu(lambda p: Pair(p.first * 2, {"a": [p.rest["a"][0] * 3]}), dtype="float64")(pair)
    assert result.first.dtype == torch.float32
    assert result.rest["a"][0].item() == 3
    assert tree_map(pair, lambda leaf: leaf) is pair
    top = ns.to_cpu(lambda x: torch.topk(x, 1), dtype="float64")(torch.tensor([1.0, 5.0]))
    assert top.values.item() == 5


def test_casts_inside_do_not_undo_the_dtype() -> None:
    def careful(x: torch.Tensor) -> torch.Tensor:
        y = x.float().to(torch.bfloat16) + torch.zeros(x.shape, dtype=torch.float16)
        seen.append(y.dtype)
        return y

    ns.to_cpu(careful, dtype="float64")(torch.ones(2))
    assert seen == [torch.float64]


def test_a_name_that_is_nothing_and_a_value_that_is_nothing_are_errors_or_unused() -> None:
    with pytest.raises(ns.SettingsError, match="give a function"):
        ns.to_cpu(3)
    with pytest.raises(ns.SettingsError, match="no torch dtype"):
        ns.to_cpu(warp, dtype="float63")
    with pytest.raises(ns.SettingsError, match=r"did you mean torch\.nn\.functional\.softmax"):
        ns.to_cpu("torch.nn.functional.sofmax").__enter__()
    with pytest.raises(ns.SettingsError, match="give a function"):
        ns.to_cpu([])
    with pytest.warns(RuntimeWarning, match="nothing of that name was called"), ns.to_cpu("blocks.*.attn") as reroute:
        model()(torch.ones(2, 6))
    assert reroute.used == 0


def test_token_ids_alone_give_back_the_dtype_of_the_weights() -> None:
    table = torch.nn.Embedding(5, 4).bfloat16()
    with ns.to_cpu(table, dtype="float64"):
        made = table(torch.tensor([1, 2]))
    assert made.dtype == torch.bfloat16


def test_in_place_calls_one_after_the_other_all_reach_the_buffer() -> None:
    class Average(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
            return x - self.mean

    plain, rerouted, x = Average(), Average(), torch.randn(4, 3)
    with ns.to_cpu(rerouted, dtype="float64"):
        torch.testing.assert_close(rerouted(x), plain(x))
    torch.testing.assert_close(rerouted.mean, plain.mean)


@dataclasses.dataclass
class Counting:
    """An object with methods, and state of its own."""

    by: torch.Tensor
    calls: int = 0

    @ns.to_cpu(dtype="float64")
    def divide(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x / self.by


def test_a_methods_object_stays_the_one_it_is() -> None:
    item = Counting(torch.tensor(2.0))
    assert item.divide(torch.ones(2)).dtype == torch.float32
    assert item.calls == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_inside_runs_again_is_rerouted_too(reentrant: bool) -> None:
    class Frugal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda y: torch.sin(self.layer(y)), x, use_reentrant=reentrant)

    torch.manual_seed(0)
    frugal, before = Frugal(), torch.utils.checkpoint.CheckpointFunction
    x = torch.randn(3, 4, requires_grad=True)
    frugal(x).sum().backward()
    wanted = frugal.layer.weight.grad
    assert wanted is not None
    frugal.zero_grad()
    with ns.to_cpu(frugal, dtype="float64"):
        frugal(x).sum().backward()
    torch.testing.assert_close(frugal.layer.weight.grad, wanted)
    assert torch.utils.checkpoint.CheckpointFunction is before
