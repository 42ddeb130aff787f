"""What capture has seen, as rows, and as the columns that the store writes."""
