"""Gemma 2's sliding window was on the odd layers, and its mask was a product with zeros."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.42.0",
    "transformers==4.42.4",
    ("huggingface-hub==0.26.5", "tokenizers==0.19.1"),
    ("numpy==1.26.4",),
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/31775",
    (r"modeling_gemma2\.py:forward: .*(sliding|attention_mask|torch\.where|torch\.tril)",),
    (r"is_sliding", r"sliding_window_mask"),
)


def main():
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=6,
        pad_token_id=0,
        attn_implementation="eager",
        attn_logit_softcapping=None,
        query_pre_attn_scalar=8,
    )
    model = Gemma2ForCausalLM(config)
    tokens = torch.randint(1, 97, (2, 16))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()


if __name__ == "__main__":
    run(main)
