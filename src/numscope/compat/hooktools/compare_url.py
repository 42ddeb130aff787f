"""`python -m numscope.compat.hooktools.compare_url`: hooktools' local page, in the viewer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from numscope.core.errors import NumscopeError


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m numscope.compat.hooktools.compare_url", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address to serve on (default: this machine only)")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument(
        "--no-open", "--no-browser", dest="no_browser", action="store_true", help="print the address only"
    )
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="read the original hooktools' pickled files too; only where you trust who made them",
    )
    args = parser.parse_args(argv)
    try:
        from numscope.compat.hooktools.forms import HooktoolsForms
        from numscope.view.server import Viewer, serve

        viewer = Viewer(forms=HooktoolsForms(args.trust_pickle))
        serve(viewer, host=args.host, port=args.port, open_browser=not args.no_browser, announce=_announce)
    except NumscopeError as error:
        print(f"numscope: {error}", file=sys.stderr)
        return 2
    return 0


def _announce(url: str) -> None:
    print(f"hooktools compare: {url}#/directory", flush=True)


if __name__ == "__main__":
    sys.exit(main())
