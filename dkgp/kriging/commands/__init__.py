"""`dkgp krige` and `dkgp audit`: the commands of kriging, each a recipe of `dkgp.commands.recipe`."""

# Hangs on dkgp/commands/run.py.
