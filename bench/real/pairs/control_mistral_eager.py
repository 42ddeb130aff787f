"""Mistral's eager attention of two releases."""

from bench.real.pair import Releases, run

RELEASES = Releases(
    "transformers==4.44.0",
    "transformers==4.44.2",
    ("huggingface-hub==0.26.5", "tokenizers==0.19.1"),
    ("numpy==1.26.4",),
)


def main():
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    model = MistralForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
