"""Runs that differ for good reason: another device, precision, attention kernel. Clean, and with planted faults.

`record` captures every job on the machine where it runs; `judge` compares the pairs and holds the answers against the
truth. A recorded corpus is committed, so that a machine without a GPU judges what was recorded on one.
"""
