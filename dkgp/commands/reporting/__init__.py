"""What a command shows: documents, tables, plots, progress, memory, measurements."""
