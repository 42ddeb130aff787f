"""The rounding of each operator on this machine: the samples from which the table of accuracy is made."""
