"""One facade per older system: its names, its files, numscope's engine."""
