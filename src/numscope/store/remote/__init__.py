"""Runs at an address: their copies in the user's cache folder, and its upper size."""
