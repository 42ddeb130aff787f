"""How large an error rounding explains: measured constants, formulas, moments, discrete choices, precisions."""
