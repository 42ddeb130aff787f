"""The first non-finite value of a stored run, where it was born and how it spread; and which calls come near to it."""
