"""Real bugs: two releases of a library from PyPI, the bad one against the one that mended it, and controls."""
