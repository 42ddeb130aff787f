"""Judges the differences of a step: which rounding explains, which calls inherit an error, and which is its origin.

`walk.judge` gathers the facts (facts.py: frozen, from correspondence, rounding and dataflow) and visits the calls in
order; rules/ judge each kind of call, paths/ follow a tensor back to the calls that made it; the outcome is in state.py
alone, and changes by its methods. findings.py has the records, reasons.py the sentences, origins.py makes the report's
origin of them.
"""
