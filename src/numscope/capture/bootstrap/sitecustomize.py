"""Imported by Python at the start of every process of a captured job; see the package's docstring."""

import os
import sys


def _chain() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    import importlib.machinery

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _begin() -> None:
    if os.environ.get("NUMSCOPE_RUN") and "numscope" not in sys.modules:
        try:
            from numscope.capture import job

            job.watch_imports()
        except Exception as error:  # the user's job must start whatever happens to us
            print(f"numscope: this process is not captured ({error})", file=sys.stderr)


_chain()
_begin()
