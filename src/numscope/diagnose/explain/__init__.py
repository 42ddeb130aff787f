"""Explanations of suspects: one module per kind of suspect, and `suspect`, which chooses among them."""
