"""A recorded step as a graph: calls, their arguments, and the tensors that both runs have."""
