"""Gemma's activation was the exact GELU, where its weights were trained with the tanh form."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("transformers==4.38.2", "transformers==4.39.3", ("huggingface-hub==0.26.5", "tokenizers==0.15.2"))
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/29402",
    (r"activations\.py:forward", r"modeling_gemma\.py:forward: .*act_fn"),
    (r"self\.act_fn = ACT2FN\[(hidden_activation|config\.hidden_act)\]", r"hidden_activation"),
)


def main():
    import torch
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    model = GemmaForCausalLM(config)
    tokens = torch.randint(1, 97, (2, 16))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
