"""MPT did not clip its queries, keys and values, whatever its configuration said."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.41.2",
    "transformers==4.42.0",
    ("huggingface-hub==0.26.5", "tokenizers==0.19.1"),
    ("numpy==1.26.4",),
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/30803",
    (r"modeling_mpt\.py:forward: .*clamp",),
    (r"clip_qkv",),
)


def main():
    import torch
    from transformers import MptConfig, MptForCausalLM

    config = MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=97, max_seq_len=64, attn_config={"clip_qkv": 0.05})
    model = MptForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()


if __name__ == "__main__":
    run(main)
