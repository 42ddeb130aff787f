"""Phi's head had lost its bias."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.48.0", "transformers==4.48.3", ("huggingface-hub==0.26.5", "tokenizers==0.21.4"), ()
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/35838",
    (
        r"modeling_phi\.py",
        r"^$",
    ),
    (r"bias=(False|True)|lm_head",),
)


def main():
    import torch
    from transformers import PhiConfig, PhiForCausalLM

    config = PhiConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = PhiForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
