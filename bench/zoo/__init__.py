"""The zoo: small models with one planted bug each, and benign controls, to measure what compare finds.

    python -m bench.zoo                    # capture, compare and judge every case
    python -m bench.zoo --plain            # no capture: do target and reference differ as each case says?
    python -m bench.zoo --only 'rope*' --keep stats

`cases/` has a script per case that knows nothing of numscope, `models/` the models they share, `truth.py` how a case
says what the right answer is, `cases.py` finds them, `capture.py` and `judge.py` run and judge one.
"""
