"""XGLM's loss counted the padding after each row as a label."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.49.0", "transformers==4.50.0", ("huggingface-hub==0.26.5", "tokenizers==0.21.4"), ()
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/35914",
    (r"(modeling_xglm|loss_utils)\.py:(xglm_cross_entropy_loss|ForCausalLMLoss|fixed_cross_entropy|forward)",),
    (r"pad_token_id|loss_function",),
)


def main():
    import torch
    from transformers import XGLMConfig, XGLMForCausalLM

    config = XGLMConfig(
        vocab_size=97,
        d_model=32,
        ffn_dim=64,
        num_layers=2,
        attention_heads=4,
        dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        max_position_embeddings=64,
    )
    model = XGLMForCausalLM(config)
    tokens = torch.randint(3, 97, (2, 12))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()


if __name__ == "__main__":
    run(main)
