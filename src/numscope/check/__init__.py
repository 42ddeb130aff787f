"""The first non-finite value of a stored run: its origin, its way to the loss, and the calls that come near to overflow."""
