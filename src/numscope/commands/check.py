"""Find the first non-finite value of a run, and where it came from; of a run with --verify, the first call that computes
wrongly.

Exit status 0: nothing found; 1: found; 2: could not do it. Parameters that no optimizer step changes are remarked on,
and so is what the ranks of a job should share and do not: replicas, gradients, buffers, tied tables, random states; or
should not share and do: their data. With --headroom, also which calls cannot be moved to
a precision (fp16, bf16, fp8, fp8_e5m2 …): that alone does not change the status.

  numscope check runs/npu
  numscope check runs/fp32 --headroom fp16 --json headroom.json
"""

from __future__ import annotations

import argparse

from numscope.commands import grammar
from numscope.core.errors import RunError
from numscope.core.json_value import JsonObject

HELP = "the first non-finite value of a run, or the first call that computes wrongly"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    grammar.add_run(parser)
    grammar.add_json(parser)
    grammar.add_html(parser)
    parser.add_argument("--headroom", metavar="DTYPE", help="which calls cannot be moved to fp16, bf16, fp8 …")
    parser.add_argument("--operators", action="store_true", help="count the calls by the dtype of their output")


def run(args: argparse.Namespace) -> int:
    """Check the run; return 1 where something non-finite was found."""
    from numscope.check import headroom
    from numscope.check.checking import check
    from numscope.check.own_errors import is_first, own_errors
    from numscope.check.remarks import remarks
    from numscope.report.files import STDOUT, check_output
    from numscope.report.json import write_document
    from numscope.report.terminal import check as report
    from numscope.report.terminal import own_errors as own_report
    from numscope.report.terminal.lines import print_lines
    from numscope.store.reader import open_run

    for path in (args.json, args.html):
        if path:
            check_output(path)
    form = headroom.format_of(args.headroom) if args.headroom else None
    opened = open_run(args.run_path)
    result = check(opened)
    if not result.measured and not own_errors(opened).known:
        if not opened.calls.num_rows:
            raise RunError(f"{args.run_path} has no calls, so nothing can be said: was anything recorded?")
        raise RunError(
            f"{args.run_path} has no counts of tensors, so nothing can be said: capture it with --keep stats"
        )
    shape: JsonObject = result.to_dict()
    told = report.lines(result)
    errors = own_errors(opened)
    if errors.known:
        shape["verified"] = errors.to_dict()
        if errors.wrong and is_first(errors, result):
            shape["origin"], shape["chain"] = errors.wrong[0].to_dict(), [errors.wrong[0].call]
            told = [*own_report.lines(errors), "", *told]
        else:
            told += ["", *own_report.lines(errors)]
        shape["found"] = result.found or bool(errors.wrong)
    near = headroom.near_misses(opened)
    shape["near_misses"] = [margin.to_dict() for margin in near]
    if near:
        told += [
            "",
            f"  {len(near)} outputs come within 2 bits of their dtype's largest number, {near[0].call} nearest",
        ]
    noticed = remarks(opened)
    shape["remarks"] = [remark.to_dict() for remark in noticed]
    told += report.remark_lines(noticed)
    if form is not None:
        margins = headroom.headroom(opened, form)
        shape["headroom"] = {"dtype": form.name, "calls": [margin.to_dict() for margin in margins]}
        told += report.headroom_lines(form, margins)
    if args.operators or args.json:
        shape["operators"] = headroom.operators(opened)
    if args.operators:
        told += report.operator_lines(shape["operators"])
    if args.json:
        write_document(shape, args.json)
    if args.html:
        from numscope.report.html import write_answer

        write_answer({**shape, "run": args.run_path}, args.html)
    if args.json != STDOUT:
        print_lines(told)
    return 1 if shape["found"] else 0
