"""Other tools' dumps: a module per format that is read, one per format that is written.

`detect.py` lists the formats that are read. `foreign.py` has the types that their readers return, and writes them as a run.
"""
