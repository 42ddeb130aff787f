"""Two runs of one step that differ by a perturbed weight, for `numscope compare` to be timed on."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numscope as ns
from bench.models import build


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("keep")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for name, perturb in (("target", 1e-3), ("reference", 0.0)):
        model, step = build(args.model, perturb=perturb)
        with ns.capture(args.out / name, model, level="mix", keep=args.keep, overwrite=True, on_error="raise") as cap:
            step()
            cap.step()
    run = ns.open_run(args.out / "reference")
    sys.stdout.write(json.dumps({"calls": run.calls.num_rows, "slots": run.tensors.num_rows}) + "\n")


if __name__ == "__main__":
    main()
