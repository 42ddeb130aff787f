"""Mutated files for every reader, importer and settings parser: each is read, or refused with one line that names it."""
