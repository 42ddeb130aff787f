"""Backward: hooks on autograd nodes that exist anyway, the walk through the graph, and recomputation."""
