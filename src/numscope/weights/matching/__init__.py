"""Which tensors of two sets belong together, and which rows of one are which of the other: by names, then by value."""
