"""One faulty kernel, looked for by msprobe's accuracy checker or by `--verify`: prints one line of JSON.

    PYTHON_OF_MSPROBE -m bench.checker_worker msprobe "softmax rows sum to 0.98" --out DIR
    python -m bench.checker_worker numscope "softmax rows sum to 0.98" --out DIR

The checker makes each dumped call again, on the device and on the CPU in float64. Here the device is the CPU whose kernel is
replaced; the CPU that it is held against has its own kernels. It is given the tensors themselves, the most that it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration import device_faults

HEALTHY = "none"


def faulty(name: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if name == HEALTHY else device_faults.faulty(name)


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def by_msprobe(name: str, out: Path) -> dict[str, object]:
    from msprobe.pytorch import PrecisionDebugger
    from msprobe.pytorch.api_accuracy_checker.acc_check import acc_check, acc_check_utils

    begin = time.perf_counter()
    debugger = PrecisionDebugger(task="tensor", dump_path=str(out / "dump"), level="L1")
    with faulty(name):
        steps = device_faults.train(steps=1)
        debugger.start()
        next(steps)
        debugger.stop()
        debugger.step()
    dumped = bytes_of(out)
    acc_check.current_device = acc_check_utils.current_device = "cpu:0"
    acc_check.torch.cuda.set_device = acc_check.torch.cuda.empty_cache = lambda *_: None
    acc_check.exec_api = alternating(acc_check.exec_api, name)
    acc_check.run_backward = alternating(acc_check.run_backward, name)
    options = {"api_info_file": str(next((out / "dump").rglob("dump.json"))), "out_path": str(out / "checked")}
    options |= {"config_path": "", "save_error_data": False, "jit_compile": False, "device_id": [0]}
    acc_check.acc_check_command(Namespace(**options, result_csv_path="", filter_api=False))
    wrong = []
    for file in (out / "checked").glob("accuracy_checking_result_*.csv"):
        with file.open(encoding="utf-8-sig") as lines:
            for row in csv.DictReader(lines):
                for phase in ("forward", "backward"):
                    if row[f"{phase.title()} Test Success"].strip().lower() == "error":
                        wrong.append([row["API name"].split(".")[1], phase])
    return {"seconds": time.perf_counter() - begin, "bytes": dumped, "wrong": wrong}


def alternating(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function whose every second call is the device's."""
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        with faulty(name) if calls % 2 == 0 else contextlib.nullcontext():
            return function(*args)

    return call


def by_numscope(name: str, out: Path) -> dict[str, object]:
    import numscope as ns
    from numscope.check.own_errors import own_errors

    begin = time.perf_counter()
    with faulty(name), ns.capture(out / "run", verify=True) as capture:
        next(device_faults.train(steps=1))
        capture.step()
    origins = own_errors(ns.open_run(out / "run")).wrong
    wrong = [[origin.call.split(".")[1], origin.phase] for origin in origins]
    return {"seconds": time.perf_counter() - begin, "bytes": bytes_of(out), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", choices=("msprobe", "numscope"))
    parser.add_argument("fault", choices=(HEALTHY, *device_faults.FAULTS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        found = (by_msprobe if args.tool == "msprobe" else by_numscope)(args.fault, args.out)
    wrong = found.pop("wrong")
    assert isinstance(wrong, list)
    fault = device_faults.FAULTS.get(args.fault)
    named = [fault is not None and call in fault.calls and phase == fault.phase for call, phase in wrong]
    result = {"tool": args.tool, "fault": args.fault, **found}
    result |= {"found": any(named), "first": bool(named and named[0]), "calls": [":".join(one) for one in wrong]}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
