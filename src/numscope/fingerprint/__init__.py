"""The fingerprint of a tensor: the definition (numpy), and its fast forms (torch, Triton, numpy), all equal."""
