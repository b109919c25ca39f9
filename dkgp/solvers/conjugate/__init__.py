"""Conjugate gradients: plain, preconditioned, and in the kernel's inner product (Ratliff and Bagnell 2007)."""

# Hangs on dkgp/solvers/driver.py.
