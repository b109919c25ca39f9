"""Batch scripts of queueing systems that run a command of dkgp."""

# Hangs on dkgp/commands/run.py.
