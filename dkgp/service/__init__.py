"""The job service: a queue on SQLite, a process for each job, an HTTP service over both, and its client.

Nothing is imported here: a job's process loads only the modules of its command.
"""

# Hangs on dkgp/commands/run.py.
