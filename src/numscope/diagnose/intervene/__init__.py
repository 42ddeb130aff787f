"""Changes to a live job that prove a suspect: reroute it to the CPU, or graft the reference's tensors in."""
