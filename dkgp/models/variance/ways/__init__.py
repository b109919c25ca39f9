"""The choice among the ways to variances: forecasts, and trials on a few samples."""

# Hangs on dkgp/models/certificate.py.
