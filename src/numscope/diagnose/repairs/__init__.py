"""How far a repair carries: to the loss and the gradients of the whole pass, and to the other steps."""
