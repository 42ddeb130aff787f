"""The files of a run while it is being written: one writer thread, tables in segments, kept tensors in shards."""
