"""GPT-Neo's loss ignored how many labels the whole batch has."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.48.0",
    "transformers==4.48.3",
    ("huggingface-hub==0.26.5", "tokenizers==0.21.4", "accelerate==1.3.0", "psutil==7.2.2"),
    (),
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/35651",
    (
        r"modeling_gpt_neo\.py:forward",
        r"loss_utils\.py",
        r"trainer\.py",
    ),
    (r"loss_fct\(shift_logits|self\.loss_function|CrossEntropyLoss",),
)


def main():
    import torch
    from transformers import GPTNeoConfig, GPTNeoForCausalLM, Trainer, TrainingArguments

    model = GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=97,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=64,
            resid_dropout=0.0,
            embed_dropout=0.0,
            attention_dropout=0.0,
        )
    )
    rows = []
    for count in (12, 12, 12, 12):
        tokens = torch.randint(3, 97, (count,))
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
    Trainer(model, arguments, train_dataset=rows).train()


if __name__ == "__main__":
    run(main)
