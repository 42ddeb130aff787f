"""The calls and tensors of a step as rows, and as the columns that the store writes."""
