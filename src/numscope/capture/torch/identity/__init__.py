"""Which tensor is which: storage, layout and version decide whether a cached fingerprint still holds."""
