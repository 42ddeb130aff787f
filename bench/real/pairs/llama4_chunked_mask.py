"""Llama 4's mask of chunks was inverted in eager attention."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.51.0", "transformers==4.51.3", ("huggingface-hub==0.30.2", "tokenizers==0.21.4"), ()
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/37563",
    (r"modeling_llama4\.py:_update_causal_mask",),
    (r"masked_fill\(chunked_attention_mask|chunked_attention_mask == 0",),
)


def main():
    import torch
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    config = Llama4TextConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        intermediate_size_mlp=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        attention_chunk_size=8,
        max_position_embeddings=64,
        use_qk_norm=False,
        attn_implementation="eager",
        pad_token_id=0,
        rms_norm_eps=1e-5,
        initializer_range=0.2,
        attn_temperature_tuning=False,
        for_llm_compressor=False,
    )
    model = Llama4ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # the experts' weights are uninitialised memory
            parameter.normal_(0.0, 0.2)
    tokens = torch.randint(3, 97, (1, 24))
    model(
        input_ids=tokens, attention_mask=torch.ones_like(tokens, dtype=torch.bool), labels=tokens, use_cache=False
    ).loss.backward()


if __name__ == "__main__":
    run(main)
