"""`dkgp fit`: from a table to a model that is tuned, chosen, trained and evaluated, and a page that tells of it all."""

# Hangs on dkgp/commands/run.py.
