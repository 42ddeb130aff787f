"""BERT of two releases, between which its initialisation changed; its weights are given."""

from bench.real.pair import Releases, run

RELEASES = Releases(
    "transformers==4.50.3", "transformers==4.51.3", ("huggingface-hub==0.34.4", "tokenizers==0.21.4"), ()
)


def main():
    import torch
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=64,
    )
    model = BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.1)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
