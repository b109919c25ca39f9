"""Variances by a Cholesky factor of the whole matrix: proven by a bound on its roundings, kept on request."""

# Hangs on dkgp/models/certificate.py.
