"""Benchmarks: dkgp against NumPy, LAPACK, itself and the papers, in ratios taken in one run."""
