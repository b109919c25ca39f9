"""`dkgp fit` beside gradient boosting and a linear model: where a Gaussian process is the better choice, and where not.

Hangs on `dkgp/commands/run.py` by way of `dkgp.fit`.
"""
