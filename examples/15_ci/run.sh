#!/bin/sh
exec python -m pytest -q "$(dirname "$0")/test_port.py"
