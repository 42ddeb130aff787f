"""Other tools' dumps: one file per format that is read, one per format that is written.

`detect.py` knows them all; `foreign.py` has the shape that every reader gives and that becomes a run.
"""
