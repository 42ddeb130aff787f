"""Which target call, and which of its tensors, belong to which reference call."""
