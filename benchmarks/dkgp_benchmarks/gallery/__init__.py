"""scikit-learn's gallery of Gaussian processes, by its classes and by dkgp's: ten examples, one import changed."""

# Hangs on dkgp/cli/job_commands.py.
