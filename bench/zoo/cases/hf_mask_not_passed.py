"""A padded batch goes into a BERT without its attention mask."""

import torch
from transformers import BertConfig, BertForSequenceClassification

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing

ANY = r"(Functional|Torch|Tensor)\.\w+\.\d+\.forward"
ORIGIN = Truth(
    (
        missing("Tensor.(ne|long)"),
        Answer(r"Module\.Bert\w+\.forward\.\d+", marker=None),
        Answer(r"Module\.bert\.\w+\.forward\.\d+", module="bert", marker=None),
        # The mask's making in the library, or the first attention that is given another one.
        Answer(ANY, ("missing", "extra"), "bert", marker=None),
        Answer(ANY, module="bert", marker=None),
        Answer(r"Functional\.scaled_dot_product_attention\.0\.forward", marker=None),
        Answer(r".*attention_mask.*", kinds=("data", "missing"), marker=None),
        Answer(r"Data\..*", kinds=("data", "missing"), marker=None),
    ),
    ("semantic", "input"),
    step=0,
)


def main(variant):
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(1, 50, (3, 8))
    ids[1, 5:] = ids[2, 3:] = 0
    batch = {"input_ids": ids, "labels": torch.tensor([0, 1, 1])}
    if variant == "reference":
        batch["attention_mask"] = (ids != 0).long()  # missing
    values = []
    for _ in range(2):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
