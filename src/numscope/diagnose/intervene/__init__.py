"""Changes to a live job that prove a suspect: reroute to the CPU, graft the reference's tensor in."""
