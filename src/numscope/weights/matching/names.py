"""Reads the names of parameters: what a tensor is for, and which layer and expert it is of, whatever convention named it.

    >>> read("model.layers.3.self_attn.q_proj.weight")
    Key(role='attention.q.weight', numbers=(3,))
    >>> read("blk.3.attn_q.weight")
    Key(role='attention.q.weight', numbers=(3,))

Known are Hugging Face, Megatron, torchtitan and Meta, vLLM, GGUF, Paddle, timm, GPT-2 and T5-like names, and those that
msprobe's weight check writes (`mp_rank_00:…`, `module.…`). A name that no rule knows is its own role.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Key(NamedTuple):
    """The role of a tensor: what it is for, and the numbers of its layer and its expert."""

    role: str
    numbers: tuple[int, ...]


FUSED = {
    "attention.qkv": ("attention.q", "attention.k", "attention.v"),
    "attention.kv": ("attention.k", "attention.v"),
    "mlp.gate_up": ("mlp.gate", "mlp.up"),
    "experts.gate_up": ("experts.gate", "experts.up"),
    "shared.gate_up": ("shared.gate", "shared.up"),
}

# Parts of a name that wrap a model and say nothing.
_WRAPPERS = re.compile(
    r"^(module|model|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_model|transformer|language_model"
    r"|params|gpt_neox|backbone|llm|state_dict|text_model|decoder(?=\.(layers|final|block))|encoder(?=\.(layers|block)))\."
)
_INNER = re.compile(r"\.(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer|parametrizations)(?=\.)")
_LAYER = re.compile(r"(^|\.)(layers?|h|blocks?|blk|resblocks)[._](?P<number>\d+)\.")
_EXPERT = re.compile(r"\.(experts\.)?(?:local_experts|experts)\.(?P<number>\d+)\.")
_SUFFIXES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "gamma": "weight", "beta": "bias"}

_ATTENTION = r"(self_attn|attn|attention|self_attention|attention\.self|attention\.attention|mixer|self_attn\.attn)[._]"
_MLP = r"(mlp|feed_forward|ffn|ffn_layer|mlp\.ff)[._]"
_EXPERTS = r"(mlp|block_sparse_moe|moe|feed_forward|ffn)\.(local_)?experts\."
_RULES: tuple[tuple[str, str], ...] = (
    (
        r"(embed_tokens|tok_embeddings|(embedding\.)?word_embeddings|wte|token_embd|embed_in|token_embedder)",
        "embedding",
    ),
    (r"(lm_head|output|output_layer|embed_out|logits_dense)", "head"),
    (r"(norm|ln_f|output_norm|final_layernorm|final_layer_norm|decoder_norm|ln_post)", "norm"),
    (r"(wpe|position_embeddings|(embedding\.)?position_embeddings|position_embd|pos_embed)", "positions"),
    (_ATTENTION + r"(q_proj|wq|q|query|to_q|linear_q)", "attention.q"),
    (_ATTENTION + r"(k_proj|wk|k|key|to_k|linear_k)", "attention.k"),
    (_ATTENTION + r"(v_proj|wv|v|value|to_v|linear_v)", "attention.v"),
    (_ATTENTION + r"(linear_kv|kv_proj|key_value)", "attention.kv"),
    (
        _ATTENTION + r"(qkv_proj|query_key_value|linear_qkv|wqkv|qkv|c_attn|in_proj|qkv_linear)",
        "attention.qkv",
    ),
    (
        _ATTENTION + r"(o_proj|wo|o|out_proj|linear_proj|proj|c_proj|dense|output|out|to_out\.0|output\.dense)",
        "attention.o",
    ),
    (r"(input_layernorm|attention_norm|attn_norm|ln_1|norm1|self_attention\.linear_qkv\.layer_norm)", "norm.attention"),
    (r"(pre_self_attention_layer_norm|pre_attention_layernorm)", "norm.attention"),
    (r"(post_attention_layernorm|ffn_norm|ln_2|norm2|mlp\.linear_fc1\.layer_norm|pre_mlp_layernorm)", "norm.mlp"),
    (_ATTENTION + r"(q_norm|q_layernorm)", "norm.q"),
    (_ATTENTION + r"(k_norm|k_layernorm)", "norm.k"),
    (_EXPERTS + r"(gate_proj|w1|gate_projs?|wi_0)", "experts.gate"),
    (_EXPERTS + r"(up_proj|w3|wi_1)", "experts.up"),
    (_EXPERTS + r"(down_proj|w2|w2_weight|linear_fc2|wo)", "experts.down"),
    (_EXPERTS + r"(gate_up_proj|w13|w13_weight|linear_fc1|w1_w3)", "experts.gate_up"),
    (r"ffn_gate_exps", "experts.gate"),
    (r"ffn_up_exps", "experts.up"),
    (r"ffn_down_exps", "experts.down"),
    (r"ffn_gate_up_exps", "experts.gate_up"),
    (r"((mlp|block_sparse_moe|moe|feed_forward)\.(gate|router|router\.gate)|ffn_gate_inp)", "router"),
    (_MLP + r"(gate_proj|w1|gate|wi_0)", "mlp.gate"),
    (_MLP + r"(up_proj|w3|up|wi_1)", "mlp.up"),
    (_MLP + r"(down_proj|w2|down|linear_fc2|fc2|c_proj|dense_4h_to_h|wo)", "mlp.down"),
    (_MLP + r"(gate_up_proj|linear_fc1|w13|gate_up_fused_proj|w12)", "mlp.gate_up"),
    (_MLP + r"(fc1|c_fc|dense_h_to_4h|wi)", "mlp.up"),
)
_COMPILED = tuple((re.compile(pattern), role) for pattern, role in _RULES)


@lru_cache(maxsize=1 << 16)
def read(name: str) -> Key:
    """Return what a name says."""
    text = plain(name)
    stem, dot, last = text.rpartition(".")
    suffix = last if dot else ""
    for joined, kind in (("layer_norm_weight", "weight"), ("layer_norm_bias", "bias")):
        if last == joined:  # Megatron's fused norm and linear
            stem, suffix = f"{stem}.layer_norm", kind
    numbers: list[int] = []
    layer = _LAYER.search(f"{stem}.")
    if layer is not None:
        numbers.append(int(layer["number"]))
        stem = f"{stem}."[layer.end() :].removesuffix(".")
    elif stem.startswith(("layers.", "h.", "blocks.")):  # all layers in one tensor
        _, _, stem = stem.partition(".")
    expert = _EXPERT.search(f".{stem}.")
    if expert is not None:
        numbers.append(int(expert["number"]))
        stem = f".{stem}.".replace(expert[0], ".experts.", 1).strip(".")
    elif not suffix.startswith(("weight", "bias")) and ".experts." in f".{stem}." and dot:
        stem, suffix = f"{stem}.{suffix}", "weight"  # experts stacked in a parameter without a module
    grouped = re.fullmatch(r"(?P<kind>weight|bias)(?P<number>\d+)", suffix)
    if grouped is not None:  # Transformer Engine's grouped linear numbers its experts so
        suffix = grouped["kind"]
        numbers.append(int(grouped["number"]))
    suffix = _SUFFIXES.get(suffix, suffix)
    for pattern, role in _COMPILED:
        if pattern.fullmatch(stem):
            return Key(f"{role}.{suffix}", tuple(numbers))
    if not dot:
        stem, suffix = text, ""
    rest = tuple(int(number) for number in re.findall(r"(?<![a-z\d])\d+(?![a-z\d])", stem)) if not numbers else ()
    role = re.sub(r"(?<![a-z\d])\d+(?![a-z\d])", "*", stem) if rest else stem
    return Key(f"{role}.{suffix}", (*numbers, *rest))


def plain(name: str) -> str:
    """Return a name without what wraps a model, a file's or a rank's name before it, and the slashes of JAX."""
    _, _, text = name.rpartition(":")
    text = text.replace("/", ".")
    text = re.sub(r"(?<!\d)_(?=\d+\.)", ".", text) if text.startswith(("layers_", "h_", "blocks_")) else text
    text = _INNER.sub("", text)
    text = re.sub(r"\blinear_(qkv|fc1)\.layer_norm_", r"linear_\1.layer_norm_", text)
    attention = re.sub(r"(^|\.)blk\.(\d+)\.attn_(q|k|v|qkv)\.", r"\1blk.\2.attn.\3.", text)
    attention = re.sub(r"(^|\.)blk\.(\d+)\.attn_output\.", r"\1blk.\2.attn.o.", attention)
    text = re.sub(r"(^|\.)blk\.(\d+)\.ffn_(gate|up|down)\.", r"\1blk.\2.mlp.\3.", attention)
    while (shorter := _WRAPPERS.sub("", text)) != text:
        text = shorter
    return text


def parts_of(role: str) -> tuple[str, ...]:
    """Return the roles that a fused role joins, in the order in which its name says them; none of any other."""
    stem, _, suffix = role.rpartition(".")
    return tuple(f"{part}.{suffix}" for part in FUSED.get(stem, ()))


def short(name: str) -> str:
    """Return the part of a name by which people tell it from its neighbours: `q_proj`, `experts.2.up_proj`."""
    prefix, colon, _ = name.rpartition(":")
    parts = plain(name).split(".")
    if len(parts) > 1 and parts[-1] in ("weight", "bias", "kernel"):
        parts = parts[:-1]
    last = [at for at, part in enumerate(parts) if part.isdecimal() and parts[at - 1].endswith("experts")]
    words = ".".join(parts[last[-1] - 1 :] if last else parts[-2:] if parts[-1].isdecimal() else parts[-1:])
    return f"{prefix}{colon}{words}"
