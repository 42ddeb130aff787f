"""How `numscope run` reaches the processes that a script starts: a rank each.

The settings travel in one environment variable, and this folder is put on PYTHONPATH: Python imports `sitecustomize` from
it when a process starts, which starts a capture as soon as that process has loaded a framework. A process that turns out
to be no rank (a data loader's worker, a helper) records nothing and writes nothing.
"""
