"""GPT BigCode multiplied its scores by the root that divides them."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.54.1", "transformers==4.55.4", ("huggingface-hub==0.34.4", "tokenizers==0.21.4"), ()
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/40153",
    (r".",),
    (r"self\.head_dim\s*\*\*\s*-?0\.5",),
)


def main():
    import torch
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    config = GPTBigCodeConfig(
        vocab_size=97,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.2,
    )
    model = GPTBigCodeForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()


if __name__ == "__main__":
    run(main)
