"""The exact LS-SVM: all samples, with an intercept, every decision within a proven bound."""

# Hangs on dkgp/models/certificate.py.
