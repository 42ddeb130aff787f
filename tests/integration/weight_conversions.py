"""A random Llama, and what other tools' conversions make of it: the sides of the pairs that `numscope weights` is tried on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, HEADS, GROUPS, LAYERS, PADDING = 256, 8, 4, 2, 64
State = dict[str, torch.Tensor]


@cache
def llama() -> LlamaForCausalLM:
    """Return a small model whose norms are not all ones."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        vocab_size=320,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def state() -> State:
    """Return a copy of the model's tensors."""
    return {name: value.detach().clone() for name, value in llama().state_dict().items()}


def rotary(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows with the halves of each head interleaved, as Meta's and llama.cpp's rotary embedding has them."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(path: Path, kind: str) -> None:
    """Write the model as llama.cpp's converter does, with its matrices of a type of GGUF."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in state().items():
        stem = name.removesuffix(".weight")
        if "layers" in stem:
            _, _, layer, rest = stem.split(".", 3)
            there = f"blk.{layer}.{_GGUF[rest]}.weight"
        else:
            there = f"{_GGUF[stem]}.weight"
        for part, heads in (("q_proj", HEADS), ("k_proj", GROUPS)):
            value = rotary(value, heads) if part in name else value
        quantised = gguf.GGMLQuantizationType[kind]
        if value.dim() == 2 and kind != "F32":
            writer.add_tensor(there, gguf.quants.quantize(value.numpy(), quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(there, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def megatron(dtype: torch.dtype = torch.float32) -> State:
    """Return the model in Megatron-core's layout: qkv by groups of heads, norms beside their matrices, padded vocabulary."""
    hf, out = state(), {}
    padding = torch.zeros(PADDING, HIDDEN)
    out["embedding.word_embeddings.weight"] = torch.cat([hf["model.embed_tokens.weight"], padding])
    out["output_layer.weight"] = torch.cat([hf["lm_head.weight"], padding])
    out["decoder.final_layernorm.weight"] = hf["model.norm.weight"]
    for layer in range(LAYERS):
        here, there = f"model.layers.{layer}", f"decoder.layers.{layer}"
        parts = [hf[f"{here}.self_attn.{x}_proj.weight"].view(GROUPS, -1, HIDDEN) for x in "qkv"]
        out[f"{there}.self_attention.linear_qkv.weight"] = torch.cat(parts, 1).reshape(-1, HIDDEN)
        out[f"{there}.self_attention.linear_proj.weight"] = hf[f"{here}.self_attn.o_proj.weight"]
        out[f"{there}.self_attention.linear_qkv.layer_norm_weight"] = hf[f"{here}.input_layernorm.weight"]
        out[f"{there}.mlp.linear_fc1.layer_norm_weight"] = hf[f"{here}.post_attention_layernorm.weight"]
        gate_up = [hf[f"{here}.mlp.{x}_proj.weight"] for x in ("gate", "up")]
        out[f"{there}.mlp.linear_fc1.weight"] = torch.cat(gate_up)
        out[f"{there}.mlp.linear_fc2.weight"] = hf[f"{here}.mlp.down_proj.weight"]
    return {name: value.to(dtype).contiguous() for name, value in out.items()}


def stacked(tensors: State) -> State:
    """Return the tensors with all layers in one, as Megatron writes homogeneous layers into torch_dist."""
    out: State = {}
    for name, value in tensors.items():
        if ".layers.0." in name:
            values = [tensors[name.replace(".0.", f".{layer}.", 1)] for layer in range(LAYERS)]
            out[name.replace(".layers.0.", ".layers.")] = torch.stack(values)
        elif ".layers." not in name:
            out[name] = value
    return out


def fused() -> State:
    """Return the model with q, k, v and gate, up fused, as vLLM names them."""
    out = state()
    for layer in range(LAYERS):
        for module, parts, name in (("self_attn", ("q", "k", "v"), "qkv"), ("mlp", ("gate", "up"), "gate_up")):
            at = f"model.layers.{layer}.{module}"
            out[f"{at}.{name}_proj.weight"] = torch.cat([out.pop(f"{at}.{part}_proj.weight") for part in parts])
    return out


def torchtitan() -> State:
    """Return the model under torchtitan's names, with its rotary layout."""
    words = {
        "model.": "",
        "embed_tokens": "tok_embeddings",
        "self_attn.": "attention.",
        "mlp.": "feed_forward.",
        "q_proj": "wq",
        "k_proj": "wk",
        "v_proj": "wv",
        "o_proj": "wo",
        "lm_head": "output",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    out = {}
    for name, value in state().items():
        for part, heads in (("q_proj", HEADS), ("k_proj", GROUPS)):
            value = rotary(value, heads) if part in name else value
        for old, new in words.items():
            name = name.replace(old, new)
        out[name] = value
    return out


def fp8_blocks(block: int = 64) -> State:
    """Return the model with the matrices of its layers in float8, a scale for each block."""
    out: State = {}
    for name, value in state().items():
        if value.dim() == 2 and "layers" in name:
            rows, columns = (size // block for size in value.shape)
            blocks = value.view(rows, block, columns, block)
            scale = blocks.abs().amax((1, 3)) / 448
            out[name] = (blocks / scale[:, None, :, None]).reshape(value.shape).to(torch.float8_e4m3fn)
            out[f"{name}_scale_inv"] = scale
        else:
            out[name] = value
    return out


def int8_rows() -> State:
    """Return the model with the matrices of its layers in int8, a scale for each row."""
    out: State = {}
    for name, value in state().items():
        if value.dim() == 2 and "layers" in name:
            scale = value.abs().amax(1, keepdim=True) / 127
            out[name] = (value / scale).round().to(torch.int8)
            out[f"{name}_scale"] = scale
        else:
            out[name] = value
    return out


def random_numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random numbers as weights are."""
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)
