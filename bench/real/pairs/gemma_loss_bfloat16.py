"""Gemma's loss was computed from logits in bfloat16."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("transformers==4.38.1", "transformers==4.38.2", ("huggingface-hub==0.26.5", "tokenizers==0.15.2"))
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/29285",
    (r"modeling_gemma\.py:forward: .*(loss_fct|logits\.float)",),
    (r"logits\.float\(\)",),
)


def main():
    import torch
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    model = GemmaForCausalLM(config).to(torch.bfloat16)
    tokens = torch.randint(1, 97, (1, 400))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
