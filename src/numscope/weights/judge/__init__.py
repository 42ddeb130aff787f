"""Whether a difference of two sets of weights is a conversion or a fault, and which."""
