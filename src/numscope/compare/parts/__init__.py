"""A comparison in parts: each has four tables, and several are one when their tables are put side by side."""
