"""Bisection: fingerprints of everything, then tensors of the suspects, then the diagnosis."""
