"""What a difference means: what rounding explains, which calls inherit an error, and which call is its origin."""
