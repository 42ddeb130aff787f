"""A fine-tuning script with transformers' Trainer, as it is: its warm-up was lost on the way to another machine."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def main(warmup: int) -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    rows = torch.randint(0, 64, (16, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        "checkpoints", max_steps=3, per_device_train_batch_size=4, warmup_steps=warmup, learning_rate=1e-2,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, seed=0,
    )  # fmt: skip
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data).train()


if __name__ == "__main__":
    main(int(sys.argv[1]))
