"""OPT's queries were scaled, and the attention scaled once more."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.52.2", "transformers==4.52.4", ("huggingface-hub==0.34.4", "tokenizers==0.21.4"), ()
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/38290",
    (r"(modeling_opt|sdpa_attention)\.py:(forward|eager_attention_forward|sdpa_attention_forward)",),
    (
        r"scaling=(self\.scaling|1\.0)",
        r"does not pass scal",
    ),
)


def main():
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=97,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        dropout=0.0,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        pad_token_id=1,
        init_std=0.2,
    )
    model = OPTForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()


if __name__ == "__main__":
    run(main)
