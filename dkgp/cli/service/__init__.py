"""The commands of the job service: serve, submit, and those that look at jobs."""

# Hangs on dkgp/options.py.
