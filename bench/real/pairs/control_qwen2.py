"""Qwen 2, whose attention was written anew between two releases."""

from bench.real.pair import Releases, run

RELEASES = Releases(
    "transformers==4.47.1",
    "transformers==4.48.3",
    ("huggingface-hub==0.26.5", "tokenizers==0.21.4"),
    ("tokenizers==0.21.4",),
)


def main():
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_key_value_heads=2,
    )
    model = Qwen2ForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
