#!/bin/sh
# One process against two: right ones are equivalent, wrong ones diverge (the last command's status is 1).
set -e
script="$(dirname "$0")/train.py"
numscope run --overwrite --out runs/one -- "$script"
numscope run --overwrite --out runs/two -- "$script" --ranks 2
numscope compare runs/two runs/one
numscope run --overwrite --out runs/wrong -- "$script" --ranks 2 --wrong
numscope compare runs/wrong runs/one
