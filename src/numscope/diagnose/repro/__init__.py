"""One self-contained pytest file that still shows a fault."""
