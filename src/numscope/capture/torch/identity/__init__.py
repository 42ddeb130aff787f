"""The identity of tensors: storage, layout and version decide whether a cached fingerprint still holds."""
