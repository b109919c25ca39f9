"""Commands one after another: the steps that a demo and a fit share, and the demo."""

# Hangs on dkgp/commands/run.py.
