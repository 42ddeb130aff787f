"""Compiled regions: their graphs run again, node by node, and held against what their kernels left."""
