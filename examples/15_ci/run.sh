#!/bin/sh
exec python -m pytest "$(dirname "$0")/test_port.py"
