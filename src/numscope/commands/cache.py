"""Show or clear the copies of runs that were read from an address (s3://…).

They lie in the user's cache folder. Beyond an upper size, NUMSCOPE_CACHE_BYTES, by default a tenth of the disk, the
longest unused are deleted.

  numscope cache                        what is there
  numscope cache --clear                delete all copies that are not being read
  numscope cache --clear s3://bucket/a  delete this one
"""

from __future__ import annotations

import argparse
import datetime

from numscope.commands import grammar

HELP = "the copies of runs that were read from an address"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--clear", nargs="*", metavar="ADDRESS", help="delete the copies of these addresses, or all where none is given"
    )
    grammar.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List the copies, or delete them."""
    from numscope.core.errors import SettingsError
    from numscope.report.files import STDOUT
    from numscope.report.terminal.lines import align, print_lines, size
    from numscope.store.remote import cache

    entries, kept = cache.entries(), []
    if args.clear is not None:
        chosen = {cache.without_credentials(address).rstrip("/") for address in args.clear}
        known = {entry.address.rstrip("/") for entry in entries}
        if unknown := chosen - known:
            raise SettingsError(f"no copy of {min(unknown)}: `numscope cache` lists those that are there")
        entries = [entry for entry in entries if not chosen or entry.address.rstrip("/") in chosen]
        kept = [entry for entry in entries if not cache.delete(entry)]
        entries = [entry for entry in entries if entry not in kept]
    total, most = sum(entry.bytes for entry in entries), cache.most_bytes()
    if args.json:
        from numscope.report.json import write_document

        rows = [{"address": entry.address, "bytes": entry.bytes, "used": entry.used} for entry in entries]
        answer = {
            "format": "numscope.cache/1",
            "folder": str(cache.root()),
            "most_bytes": most,
            "deleted" if args.clear is not None else "runs": rows,
            "in_use": [entry.address for entry in kept],
        }
        write_document(answer, args.json)
        if args.json == STDOUT:
            return 2 if kept else 0
    cells = [[size(entry.bytes), _date(entry.used), entry.address] for entry in entries]
    print_lines("  ".join(row) for row in align(cells, [True, False, False]))
    what = "deleted" if args.clear is not None else f"of {size(most)} at most, in {cache.root()}"
    print_lines([f"{len(entries)} {'copy' if len(entries) == 1 else 'copies'}, {size(total)} {what}"])
    print_lines(f"{entry.address} is being read: it is left" for entry in kept)
    return 2 if kept else 0


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
