"""One file per family of operators: how a sample of what they make is computed again."""
