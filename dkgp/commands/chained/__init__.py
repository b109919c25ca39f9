"""Commands one after another: the steps that a demo and a fit share, the demo, and training after tuning."""

# Hangs on dkgp/commands/run.py.
