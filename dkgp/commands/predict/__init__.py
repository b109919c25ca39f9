"""`dkgp predict`: predict a data set or lines with a model; `dkgp export`: convert a prediction store to a table."""

# Hangs on dkgp/commands/run.py.
