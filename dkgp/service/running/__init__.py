"""Jobs as processes: the supervisor that starts them, the runner inside, recovery after a crash."""

# Hangs on dkgp/commands/run.py.
