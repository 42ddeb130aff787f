"""Where a NaN or an infinity was born: the rule that the guard and `numscope check` share."""
