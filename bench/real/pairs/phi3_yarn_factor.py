"""Phi 3's YaRN scaling used the factor of the other scheme."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.42.4",
    "transformers==4.43.4",
    ("huggingface-hub==0.26.5", "tokenizers==0.19.1"),
    ("numpy==1.26.4",),
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/30437",
    (r"modeling_phi3\.py:forward: .*scaling_factor",),
    (r"scaling_factor = ",),
)


def main():
    import torch
    from transformers import Phi3Config, Phi3ForCausalLM

    factors = [1.0, 1.5]
    config = Phi3Config(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        pad_token_id=0,
        rope_scaling={"type": "yarn", "short_factor": factors, "long_factor": factors},
        attn_implementation="eager",
    )
    model = Phi3ForCausalLM(config)
    tokens = torch.randint(1, 97, (2, 16))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()


if __name__ == "__main__":
    run(main)
