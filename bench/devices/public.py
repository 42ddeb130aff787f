"""Twelve public architectures with random weights, small: what people move between devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Batch = dict[str, torch.Tensor]
_TEXT: dict[str, Any] = {"vocab_size": 256, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
_GATED: dict[str, Any] = _TEXT | {"intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 64}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _decoder(name: str, **more: Any) -> Callable[[str], torch.nn.Module]:
    def build(attention: str) -> torch.nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(**(_GATED | more))
        return _with(attention, getattr(transformers, f"{name}ForCausalLM"), config)

    return build


def _of(config_name: str, model_name: str, **settings: Any) -> Callable[[str], torch.nn.Module]:
    def build(attention: str) -> torch.nn.Module:
        import transformers

        config = getattr(transformers, config_name)(**settings)
        return _with(attention, getattr(transformers, model_name), config)

    return build


def _with(attention: str, model: Any, config: Any) -> torch.nn.Module:
    """Build with the kind of attention that is asked for, or eager where the architecture has no other."""
    config._attn_implementation = attention if getattr(model, "_supports_sdpa", True) else "eager"
    built: torch.nn.Module = model(config)
    return built


def _text() -> Batch:
    tokens = torch.randint(3, 256, (2, 24))
    return {"input_ids": tokens, "labels": tokens}


def _masked_text() -> Batch:
    batch = _text()
    mask = torch.ones_like(batch["input_ids"])
    mask[1, -5:] = 0
    return batch | {"attention_mask": mask}


def _images() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 3, (2,))}


def _speech() -> Batch:
    return {"input_features": torch.randn(2, 16, 64), "labels": torch.randint(3, 256, (2, 12))}


class Recurrent(torch.nn.Module):
    """An LSTM over embeddings: cuDNN's kernel on one side, the CPU's on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 48)
        self.layers = torch.nn.LSTM(48, 64, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(64, 256)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.head(self.layers(self.embedding(input_ids))[0])
        return (torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), logits)


# name → how to build it for a kind of attention, how to make a batch. The second half was first judged when the rules
# stood (see docs/explanation/verdicts.md).
PUBLIC: dict[str, tuple[Callable[[str], torch.nn.Module], Callable[[], Batch]]] = {
    "llama": (_decoder("Llama"), _text),
    "gpt2": (
        _of(
            "GPT2Config",
            "GPT2LMHeadModel",
            vocab_size=256,
            n_layer=2,
            n_embd=64,
            n_head=4,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        _text,
    ),
    "mixtral": (_decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2), _text),
    "t5": (
        _of(
            "T5Config",
            "T5ForConditionalGeneration",
            vocab_size=256,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        ),
        _text,
    ),
    "lstm": (lambda attention: Recurrent(), _text),
    "bert": (_of("BertConfig", "BertForMaskedLM", **_TEXT, intermediate_size=128, **_NO_DROPOUT), _masked_text),
    "gemma2": (_decoder("Gemma2", head_dim=16, sliding_window=8), _text),
    "qwen2": (_decoder("Qwen2"), _text),
    "vit": (
        _of(
            "ViTConfig",
            "ViTForImageClassification",
            num_hidden_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=128,
            image_size=32,
            patch_size=8,
            num_labels=3,
            **_NO_DROPOUT,
        ),
        _images,
    ),
    "whisper": (
        _of(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            vocab_size=256,
            d_model=64,
            num_mel_bins=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_source_positions=32,
            max_target_positions=32,
            dropout=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        _speech,
    ),
    "resnet": (
        _of(
            "ResNetConfig",
            "ResNetForImageClassification",
            embedding_size=16,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            layer_type="basic",
            num_labels=3,
        ),
        _images,
    ),
    "qwen2moe": (
        _decoder(
            "Qwen2Moe",
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
        ),
        _text,
    ),
}
