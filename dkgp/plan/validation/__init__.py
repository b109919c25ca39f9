"""The cost model against real runs: solves on 1, 2, ... worker processes of this machine, beside what was foreseen."""

# Hangs on dkgp/commands/train/run.py.
