"""The queue of jobs in a folder: one SQLite database, locks, one file of events a job."""

# Hangs on dkgp/commands/run.py.
