"""Output of commands: documents, tables, plots, progress, memory, measurements."""

# Imported by dkgp/commands/run.py.
