"""The judge's rules, one file per kind of call: leaf, composite, optimizer step, late write."""
