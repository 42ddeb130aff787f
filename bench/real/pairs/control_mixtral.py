"""Mixtral of two releases."""

from bench.real.pair import Releases, run

RELEASES = Releases("transformers==4.38.2", "transformers==4.39.3", ("huggingface-hub==0.26.5", "tokenizers==0.15.2"))


def main():
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = MixtralForCausalLM(config)
    tokens = torch.randint(0, 97, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
