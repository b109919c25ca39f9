"""A parametric mean: columns h(x), their coefficients by generalised least squares, and what is proven of them."""

# Hangs on dkgp/models/exact.py.
