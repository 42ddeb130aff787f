"""Llama of two releases."""

from bench.real.pair import Releases, run

RELEASES = Releases(
    "transformers==4.48.3", "transformers==4.49.0", ("huggingface-hub==0.26.5", "tokenizers==0.21.4"), ()
)


def main():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
