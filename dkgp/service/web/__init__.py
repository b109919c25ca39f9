"""The HTTP interface: routes, answers, access, limits, metrics, the page and its stream of events."""

# Hangs on dkgp/commands/run.py.
