#!/bin/sh
# The last command's status is 1, because the runs differ.
set -e
script="$(dirname "$0")/main.py"
numscope run --overwrite --out runs/reference -- "$script" 2
numscope run --overwrite --out runs/target -- "$script" 0
numscope compare runs/target runs/reference
