"""The entry point that all cases share: `case.py --variant target|reference` prints the values of the run's end."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence

import torch


def run(main: Callable[[str], Sequence[float]]) -> None:
    """Run one variant and print its values (losses, norms) as one line of JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--variant", choices=("target", "reference"), required=True)
    variant = parser.parse_args().variant
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(json.dumps([float(value) for value in main(variant)]))
