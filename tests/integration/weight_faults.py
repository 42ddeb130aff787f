"""Planted faults of weights: a healthy state dict, one way in which its copy is wrong, and what must be named.

A case is applied to the reference's tensors and gives the suspect's. Cases are small models of random values with the
names of Hugging Face's Llama, dense and with experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

State = dict[str, np.ndarray]
HIDDEN, HEADS, KEYS, WIDE, VOCABULARY, LAYERS, EXPERTS = 64, 4, 2, 96, 160, 4, 4
HEAD = HIDDEN // HEADS


def dense(seed: int = 0, dtype: str = "float32") -> State:
    """Return a model of four layers; trained, in that its norms are not all ones."""
    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return draw.normal(0, 0.05, (rows, columns)).astype(np.float32)

    state = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        state |= {
            f"{at}.input_layernorm.weight": draw.normal(1, 0.2, HIDDEN).astype(np.float32),
            f"{at}.self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": matrix(KEYS * HEAD, HIDDEN),
            f"{at}.self_attn.v_proj.weight": matrix(KEYS * HEAD, HIDDEN),
            f"{at}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
            f"{at}.post_attention_layernorm.weight": draw.normal(1, 0.2, HIDDEN).astype(np.float32),
            f"{at}.mlp.gate_proj.weight": matrix(WIDE, HIDDEN),
            f"{at}.mlp.up_proj.weight": matrix(WIDE, HIDDEN),
            f"{at}.mlp.down_proj.weight": matrix(HIDDEN, WIDE),
        }
    state["model.norm.weight"] = draw.normal(1, 0.2, HIDDEN).astype(np.float32)
    state["lm_head.weight"] = matrix(VOCABULARY, HIDDEN)
    return {name: value.astype(_dtype(dtype)) for name, value in state.items()}


def sparse(seed: int = 1) -> State:
    """Return a model of two layers with four experts each."""
    draw = np.random.default_rng(seed)
    state = {"model.embed_tokens.weight": draw.normal(0, 0.05, (VOCABULARY, HIDDEN)).astype(np.float32)}
    for layer in range(2):
        at = f"model.layers.{layer}.mlp"
        state[f"{at}.gate.weight"] = draw.normal(0, 0.05, (EXPERTS, HIDDEN)).astype(np.float32)
        for expert in range(EXPERTS):
            for role, shape in (("gate", (WIDE, HIDDEN)), ("up", (WIDE, HIDDEN)), ("down", (HIDDEN, WIDE))):
                value = draw.normal(0, 0.05, shape).astype(np.float32)
                state[f"{at}.experts.{expert}.{role}_proj.weight"] = value
    return state


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name)) if name.startswith(("bfloat", "float8")) else np.dtype(name)


def fused(state: State, order: str = "qkv") -> State:
    """Return the state with q, k and v in one matrix, one after the other in this order."""
    out = {name: value for name, value in state.items() if not any(f".{x}_proj." in name for x in "qkv")}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.self_attn"
        out[f"{at}.qkv_proj.weight"] = np.concatenate([state[f"{at}.{x}_proj.weight"] for x in order])
    return out


@dataclass(frozen=True)
class Fault:
    """A way in which weights are wrong, what must be said of it, and of which of the suspect's tensors."""

    name: str
    plant: Callable[[], tuple[State, State]]  # the suspect's, and the reference's tensors
    fault: str
    tensors: tuple[str, ...]  # of the pairs that are named; those of the reference for what is missing
    says: tuple[str, ...] = ()  # in the reason, whatever the sentence
    verdict: str = "diverged"
    earlier: Callable[[], State] | None = None


FAULTS: list[Fault] = []
Q1, O2, UP0 = (
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.2.self_attn.o_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
)
DOWN1, GATE3 = "model.layers.1.mlp.down_proj.weight", "model.layers.3.mlp.gate_proj.weight"
NORM2 = "model.layers.2.input_layernorm.weight"
EMBED, HEADW = "model.embed_tokens.weight", "lm_head.weight"


def plant(
    fault: str, *tensors: str, says: tuple[str, ...] = (), verdict: str = "diverged", on: Callable[[], State] = dense
) -> Callable[[Callable[[State], State | None]], None]:
    """Register a change of a state as a fault; it changes a copy in place, or returns the suspect's state."""

    def register(change: Callable[[State], State | None]) -> None:
        def make() -> tuple[State, State]:
            reference = on()
            suspect = {name: value.copy() for name, value in reference.items()}
            return change(suspect) or suspect, reference

        FAULTS.append(Fault(change.__name__, make, fault, tensors, says, verdict))

    return register


@plant("missing", UP0, verdict="incomplete")
def one_is_missing(state: State) -> None:
    del state[UP0]


@plant("extra", "model.layers.4.mlp.up_proj.weight", verdict="incomplete")
def one_is_extra(state: State) -> None:
    state["model.layers.4.mlp.up_proj.weight"] = np.random.default_rng(9).normal(size=(WIDE, HIDDEN)).astype(np.float32)


@plant("zero", Q1)
def one_is_all_zero(state: State) -> None:
    state[Q1][:] = 0


@plant("initialisation", UP0)
def one_was_never_loaded(state: State) -> None:
    bound = 1 / np.sqrt(HIDDEN)
    state[UP0] = np.random.default_rng(5).uniform(-bound, bound, (WIDE, HIDDEN)).astype(np.float32)


@plant("initialisation", NORM2)
def a_norm_was_never_loaded(state: State) -> None:
    state[NORM2][:] = 1


@plant("swapped", Q1, Q1.replace("1", "2"), says=(Q1.replace("1", "2"),))
def two_layers_are_swapped(state: State) -> None:
    other = Q1.replace("1", "2")
    state[Q1], state[other] = state[other], state[Q1]


@plant("swapped", GATE3, GATE3.replace("gate", "up"))
def gate_and_up_are_swapped(state: State) -> None:
    other = GATE3.replace("gate", "up")
    state[GATE3], state[other] = state[other], state[GATE3]


@plant("order", GATE3, says=("1, 0",))
def two_row_shards_are_in_the_wrong_order(state: State) -> None:
    state[GATE3] = np.concatenate(np.split(state[GATE3], 2)[::-1])


@plant("order", DOWN1, says=("column",))
def four_column_shards_are_in_the_wrong_order(state: State) -> None:
    parts = np.split(state[DOWN1], 4, axis=1)
    state[DOWN1] = np.concatenate([parts[i] for i in (0, 2, 1, 3)], axis=1)


@plant("expert", *(f"model.layers.1.mlp.experts.{n}.down_proj.weight" for n in (0, 1)), on=sparse)
def two_experts_are_exchanged(state: State) -> None:
    x, y = (f"model.layers.1.mlp.experts.{n}.down_proj.weight" for n in (0, 1))
    state[x], state[y] = state[y], state[x]


@plant("expert", "model.layers.0.mlp.experts.up_proj", on=sparse)
def stacked_experts_are_in_another_order(state: State) -> State:
    for layer in range(2):
        for role in ("gate", "up", "down"):
            names = [f"model.layers.{layer}.mlp.experts.{n}.{role}_proj.weight" for n in range(EXPERTS)]
            parts = [state.pop(name) for name in names]
            if layer == 0 and role == "up":
                parts[1], parts[3] = parts[3], parts[1]
            state[f"model.layers.{layer}.mlp.experts.{role}_proj"] = np.stack(parts)
    return state


@plant("transposed", O2)
def a_square_matrix_is_transposed(state: State) -> None:
    state[O2] = state[O2].T.copy()


@plant("layer", *(f"model.layers.{n}.mlp.up_proj.weight" for n in range(3)), says=("layer",))
def a_role_is_off_by_one_layer(state: State) -> None:
    values = [state[f"model.layers.{n}.mlp.up_proj.weight"] for n in range(LAYERS)]
    for n in range(LAYERS):
        state[f"model.layers.{n}.mlp.up_proj.weight"] = values[(n + 1) % LAYERS]


@plant("layer", *(f"model.layers.{n}.self_attn.o_proj.weight" for n in range(1, LAYERS)))
def all_layers_are_off_by_one(state: State) -> State:
    def moved(name: str) -> str:
        parts = name.split(".")
        if parts[1] == "layers" and int(parts[2]) > 0:
            parts[2] = str(int(parts[2]) - 1)
        return ".".join(parts)

    return {name: state[moved(name)].copy() for name in state}


@plant("layer", "model.layers.3.self_attn.v_proj.weight", says=("model.layers.2.self_attn.v_proj.weight",))
def a_layer_has_the_tensor_of_its_neighbour(state: State) -> None:
    state["model.layers.3.self_attn.v_proj.weight"] = state["model.layers.2.self_attn.v_proj.weight"].copy()


@plant("dtype", Q1, GATE3, EMBED, says=("bfloat16",), verdict="equivalent")
def all_went_through_bfloat16(state: State) -> State:
    return {name: value.astype(ml_dtypes.bfloat16).astype(np.float32) for name, value in state.items()}


@plant("dtype", O2, says=("float16",), verdict="equivalent")
def one_went_through_float16(state: State) -> None:
    state[O2] = state[O2].astype(np.float16).astype(np.float32)


@plant("dtype", DOWN1, says=("float8_e4m3fn",))
def one_went_through_float8(state: State) -> None:
    state[DOWN1] = state[DOWN1].astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


@plant("scale", O2, says=("2",))
def one_is_twice_as_large(state: State) -> None:
    state[O2] *= 2


@plant("scale", Q1, says=("0.25",))
def a_query_has_the_attention_scale_folded_in(state: State) -> None:
    state[Q1] *= np.float32(1 / np.sqrt(HEAD))


@plant("scale", UP0, says=("-1",))
def a_sign_is_wrong(state: State) -> None:
    state[UP0] = -state[UP0]


@plant("scale", NORM2, says=("1",))
def a_norm_has_one_added(state: State) -> None:
    state[NORM2] += 1


@plant("slice", GATE3, says=("rows 24–47",))
def some_rows_are_wrong(state: State) -> None:
    state[GATE3][24:48] = np.random.default_rng(3).normal(0, 0.05, (24, HIDDEN))


@plant("slice", DOWN1, says=("columns 0–31",))
def some_columns_are_wrong(state: State) -> None:
    state[DOWN1][:, :32] = np.random.default_rng(3).normal(0, 0.05, (HIDDEN, 32))


@plant("slice", EMBED, says=("rows 159",))
def the_last_row_of_the_vocabulary_is_wrong(state: State) -> None:
    state[EMBED][159] = state[EMBED][:159].mean(0)


@plant("bit", UP0, says=("[17, 5]", "bit 30"))
def one_bit_is_flipped(state: State) -> None:
    state[UP0].view(np.uint32)[17, 5] ^= np.uint32(1 << 30)


@plant("bit", Q1, says=("[3, 60]", "bit 2"), on=lambda: dense(dtype="bfloat16"))
def one_low_bit_of_bfloat16_is_flipped(state: State) -> None:
    state[Q1].view(np.uint16)[3, 60] ^= np.uint16(1 << 2)


@plant("order", "model.layers.2.self_attn.qkv_proj.weight", says=("k_proj",))
def query_and_key_are_fused_in_the_wrong_order(state: State) -> State:
    right, wrong = fused(state), fused(state, "kqv")
    name = "model.layers.2.self_attn.qkv_proj.weight"
    return {**right, name: wrong[name]}


@plant("order", Q1, says=("rotary",))
def a_query_is_interleaved_as_the_other_rotary_layout_has_it(state: State) -> None:
    state[Q1] = state[Q1].reshape(HEADS, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(HIDDEN, HIDDEN).copy()


@plant("order", EMBED, says=("1",))
def the_vocabulary_is_shifted_by_one_row(state: State) -> None:
    state[EMBED] = np.roll(state[EMBED], 1, axis=0)


@plant("non-finite", DOWN1, says=("NaN",))
def one_element_is_nan(state: State) -> None:
    state[DOWN1][3, 7] = np.nan


@plant("values", UP0)
def a_tensor_was_trained_a_little_further(state: State) -> None:
    state[UP0] += np.random.default_rng(4).normal(0, 1e-4, state[UP0].shape).astype(np.float32)


@plant("expert", "model.layers.0.mlp.experts.2.up_proj.weight", on=sparse)
def an_expert_is_a_copy_of_another(state: State) -> None:
    state["model.layers.0.mlp.experts.2.up_proj.weight"] = state["model.layers.0.mlp.experts.1.up_proj.weight"].copy()


@plant("initialisation", *(f"model.layers.3.mlp.{role}_proj.weight" for role in ("gate", "up", "down")))
def a_layer_was_never_loaded(state: State) -> None:
    draw = np.random.default_rng(8)
    for role in ("gate", "up", "down"):
        value = state[f"model.layers.3.mlp.{role}_proj.weight"]
        value[:] = draw.normal(0, 0.02, value.shape)


def _stale_whole() -> tuple[State, State]:
    old, step = dense(), np.random.default_rng(7)
    new = {name: value + step.normal(0, 1e-3, value.shape).astype(np.float32) for name, value in old.items()}
    return old, new


def _stale_one() -> tuple[State, State]:
    old, new = _stale_whole()
    return {**new, Q1: old[Q1]}, new


FAULTS.append(
    Fault("one_tensor_is_of_an_earlier_checkpoint", _stale_one, "stale", (Q1,), earlier=lambda: _stale_whole()[0])
)
FAULTS.append(
    Fault("all_is_of_an_earlier_checkpoint", _stale_whole, "stale", (Q1, EMBED), earlier=lambda: _stale_whole()[0])
)


def _untied() -> tuple[State, State]:
    reference = dense()
    reference[HEADW] = reference[EMBED].copy()
    return {**reference, HEADW: dense(3)[HEADW]}, reference


FAULTS.append(Fault("a_tied_head_has_other_values", _untied, "initialisation", (HEADW,)))

TRIED = FAULTS[::2]  # what the rules were made with
HELD_OUT = FAULTS[1::2]  # what was looked at when they were done
