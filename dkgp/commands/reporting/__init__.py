"""Output of commands: documents, tables, plots, progress, memory, measurements."""
