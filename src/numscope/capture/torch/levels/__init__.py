"""The interposition points of torch: the API, aten, modules, autograd.Function, collectives, optimizers, compiled regions."""
