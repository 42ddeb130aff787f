"""Gemma's RMSNorm was rounded to bfloat16 before the product with its weight, and the activation was the exact GELU."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("transformers==4.38.2", "transformers==4.39.3", ("huggingface-hub==0.26.5", "tokenizers==0.15.2"))
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/29402",
    (r"modeling_gemma\.py:forward: .*(self\.weight|type_as|_norm)",),
    (r"output \* \(1(\.0)? \+ self\.weight", r"self\._norm\(x\.float\(\)\)\.type_as"),
)


def main():
    import torch
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        pad_token_id=0,
        hidden_act="gelu_pytorch_tanh",
    )
    model = GemmaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(0.3, 0.5)
    tokens = torch.randint(1, 97, (2, 16))
    model(input_ids=tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    run(main)
