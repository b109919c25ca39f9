"""Output of commands: documents, tables, plots, progress, memory, measurements."""

# Hangs on dkgp/commands/run.py.
