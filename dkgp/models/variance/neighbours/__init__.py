"""Variance intervals from the samples near each test point: for kernels of distances in one to three features."""

# Hangs on dkgp/models/certificate.py.
