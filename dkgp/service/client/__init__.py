"""Talking to a service from the command line: requests, and patience where it is away."""

# Hangs on dkgp/commands/run.py.
