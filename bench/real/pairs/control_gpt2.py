"""GPT-2 of two releases, between which its attention was written anew."""

from bench.real.pair import Releases, run

RELEASES = Releases(
    "transformers==4.49.0", "transformers==4.50.3", ("huggingface-hub==0.26.5", "tokenizers==0.21.4"), ()
)


def main():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
