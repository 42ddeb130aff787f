"""The Trainer counted the labels without the first of each row, and scaled the loss of a model by accumulation."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.46.0",
    "transformers==4.46.3",
    ("huggingface-hub==0.26.5", "tokenizers==0.20.3", "accelerate==1.1.1", "psutil==7.2.2"),
    (),
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/34511",
    (r".",),
    (
        r"num_items_in_batch",
        r"gradient_accumulation_steps",
    ),
)


def main():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
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
