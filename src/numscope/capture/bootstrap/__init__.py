"""Capture of the processes that a script under `numscope run` starts: a rank each.

The settings travel in one environment variable, and this folder is put on PYTHONPATH: Python imports `sitecustomize` from
it when a process starts, which starts a capture as soon as that process has loaded a framework. A process that is
no rank (a data loader's worker, a helper) records nothing and writes nothing.
"""
