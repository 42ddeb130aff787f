"""A recorded step as a graph: its calls, their arguments, and the tensors that both runs share."""
