"""Dataflow between calls: where a tensor came from, and what stands between two tensors."""
