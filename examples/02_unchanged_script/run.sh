#!/bin/sh
# The commands of the README, one after the other; the last one's status is 1, because the runs differ.
set -e
script="$(dirname "$0")/train.py"
numscope run --overwrite --out runs/one -- "$script" --dropout 0.1
numscope show runs/one
numscope show runs/one '*layer_norm*' --stack
numscope run --overwrite --out runs/two -- "$script" --dropout 0.2
numscope compare runs/two runs/one
