"""How far apart paired tensors are: from fingerprints, and exactly where both sides kept the data."""
