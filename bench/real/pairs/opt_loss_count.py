"""OPT's loss ignored how many labels the whole batch has."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.48.0",
    "transformers==4.48.3",
    ("huggingface-hub==0.26.5", "tokenizers==0.21.4", "accelerate==1.3.0", "psutil==7.2.2"),
    (),
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/35838",
    (
        r"modeling_opt\.py:forward",
        r"loss_utils\.py",
        r"trainer\.py",
    ),
    (r"loss_fct|self\.loss_function|CrossEntropyLoss",),
)


def main():
    import torch
    from transformers import OPTConfig, OPTForCausalLM, Trainer, TrainingArguments

    config = OPTConfig(
        vocab_size=97,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        dropout=0.0,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        pad_token_id=1,
    )
    rows = []
    for _ in range(4):
        tokens = torch.randint(3, 97, (12,))
        labels = tokens.clone()
        labels[10 - 2 * len(rows) :] = -100
        rows.append({"input_ids": tokens, "labels": labels})
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        seed=0,
        learning_rate=1e-3,
        max_grad_norm=0.0,
        disable_tqdm=True,
    )
    Trainer(OPTForCausalLM(config), arguments, train_dataset=rows).train()


if __name__ == "__main__":
    run(main)
