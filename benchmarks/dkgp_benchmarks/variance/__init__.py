"""Predictive variances against Cholesky, and Tables 3 and 4 of the GBCD paper."""
