"""Plans of training before it runs: passes, seconds and memory, on 1 to 256 workers."""

# Hangs on dkgp/commands/training.py.
