"""The table of operators: one row for every spelling, and traits that agree with each other and with torch."""

from __future__ import annotations

import pytest
import torch

from numscope.core.operators import (
    OPERATORS,
    Rounding,
    Trait,
    canonical,
    canonical_of_paddle,
    names_with,
    operator,
    operator_of_module,
    writes_in_place,
)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("__iadd__", "add"),
        ("__radd__", "add"),
        ("add_", "add"),
        ("add.Tensor", "add"),
        ("__truediv__", "div"),
        ("true_divide", "div"),
        ("__rsub__", "rsub"),
        ("greater_equal", "ge"),
        ("swapdims", "transpose"),
        ("relu", "relu"),
        ("_softmax", "softmax"),
        ("_to_copy", "_to_copy"),
        ("GELU", "GELU"),
    ],
)
def test_operators_have_one_name(name: str, plain: str) -> None:
    assert canonical(name) == plain


def test_a_canonical_name_is_its_own_canonical_name_unless_torch_spells_another_function_so() -> None:
    others = {name for name in OPERATORS if canonical(name) != name}
    assert all(name.endswith("_") for name in others)
    assert {"__float__", "__int__", "__index__", "detach_", "requires_grad_"} <= others


def test_a_method_that_hands_out_a_number_is_not_the_cast_of_its_name() -> None:
    assert Trait.UNRECORDED in operator("__float__").traits
    assert Trait.UNRECORDED not in operator("float").traits
    assert operator("float_").rounding == Rounding.MOVE


def test_what_is_not_in_the_table_has_no_traits() -> None:
    assert operator("flash_attention") is operator("Mine.forward")
    assert not operator("flash_attention").traits
    assert operator("flash_attention").rounding == Rounding.OTHER


def test_views_move_data_and_what_moves_data_is_exact() -> None:
    assert names_with(Trait.VIEW) < names_with(Trait.MOVES)
    assert {operator(name).rounding for name in names_with(Trait.MOVES)} == {Rounding.MOVE}


def test_what_torch_makes_a_view_of_is_a_view() -> None:
    packets = {name: getattr(torch.ops.aten, name, None) for name in OPERATORS if not name.startswith("__")}
    views = {
        name
        for name, packet in packets.items()
        if packet is not None and any(getattr(packet, form).is_view for form in packet.overloads())
    }
    assert {"transpose", "split", "slice", "alias", "_conj"} <= views
    casts = {"to", "cpu", "cuda", "pin_memory", "as_tensor", "copy"}  # give back their argument where nothing changes
    parts = {"_indices", "_values", "data"}
    assert views - names_with(Trait.VIEW | Trait.LAZY_VIEW | Trait.ATTRIBUTE) <= casts | parts


def test_memory_that_is_given_away_is_no_recorded_call() -> None:
    exposing = names_with(Trait.EXPOSES)
    assert names_with(Trait.EXPOSES_STORAGE) < exposing
    assert exposing - names_with(Trait.UNRECORDED) == {"map2_"}
    assert all(hasattr(torch.Tensor, name) for name in exposing)


@pytest.mark.parametrize("op", ["add_", "__iadd__", "__imatmul__", "__setitem__", "_foreach_add_"])
def test_in_place_spellings(op: str) -> None:
    assert writes_in_place(op)


@pytest.mark.parametrize("op", ["add", "__add__", "__invert__", "__int__", "__getitem__", "_unsafe_view"])
def test_other_spellings(op: str) -> None:
    assert not writes_in_place(op)


def test_other_names_lead_to_torchs() -> None:
    assert canonical_of_paddle("transpose") == "permute"
    assert canonical_of_paddle("cast_") == "to"
    assert canonical_of_paddle("matmul") == "matmul"
    assert operator_of_module("BatchNorm2d") == "batch_norm"
    assert operator_of_module("Mine") == "Mine"
    assert {operator_of_module(kind) for kind in ("Linear", "GELU", "Upsample")} <= OPERATORS.keys()
