"""Several ranks and micro-batches as one step of one job: each tensor whole, from the pieces that the ranks hold."""
