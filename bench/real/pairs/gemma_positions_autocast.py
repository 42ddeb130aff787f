"""Gemma's rotary angles were computed in bfloat16 under autocast, where neighbouring positions are the same."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("transformers==4.38.1", "transformers==4.38.2", ("huggingface-hub==0.26.5", "tokenizers==0.15.2"))
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/29285",
    (r"modeling_gemma\.py:forward: .*inv_freq_expanded",),
    (r"inv_freq_expanded(\.float\(\))? @ position_ids_expanded",),
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
    model = GemmaForCausalLM(config)
    tokens = torch.randint(1, 97, (1, 400))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=tokens).logits
    torch.nn.functional.cross_entropy(logits[0].float(), tokens[0]).backward()


if __name__ == "__main__":
    run(main)
