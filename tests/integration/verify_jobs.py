"""Healthy jobs to verify: public architectures, small, in several precisions; none of their calls computes wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Loss = Callable[[], torch.Tensor]
_SMALL = {"vocab_size": 120, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_GATED = {**_SMALL, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 64}
_TEXT: dict[str, dict[str, Any]] = {
    "llama": {**_GATED},
    "mistral": {**_GATED},
    "qwen2": {**_GATED},
    "qwen3": {**_GATED, "head_dim": 12},
    "gemma2": {**_GATED, "head_dim": 12},
    "phi3": {**_GATED, "pad_token_id": 0},
    "mixtral": {**_GATED, "num_local_experts": 4},
    "gpt2": {"vocab_size": 120, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": {**_SMALL, "intermediate_size": 96, "max_position_embeddings": 64},
    "opt": {**_SMALL, "ffn_dim": 96, "word_embed_proj_dim": 48, "max_position_embeddings": 64},
    "bert": {**_SMALL, "intermediate_size": 96},
    "t5": {
        "vocab_size": 120,
        "d_model": 48,
        "d_kv": 12,
        "d_ff": 96,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
}
PRECISIONS = ("float32", "bfloat16", "float16", "autocast")
JOBS = tuple((name, precision) for name in _TEXT for precision in PRECISIONS)


def _model(name: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

    kind = {"bert": AutoModelForMaskedLM, "t5": AutoModelForSeq2SeqLM}.get(name, AutoModelForCausalLM)
    return kind.from_config(AutoConfig.for_model(name, **_TEXT[name]))


def steps(name: str, precision: str, count: int = 2) -> Iterator[torch.Tensor]:
    """Train a small model of an architecture and yield the loss of each step."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = _model(name)
    cast = precision == "autocast"
    if not cast:
        model = model.to(getattr(torch, precision))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=name in ("llama", "gpt2"), foreach=None)
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        tokens = torch.randint(1, 120, (2, 23), generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss
