"""scikit-learn's gallery of Gaussian processes, by its classes and by dkgp's: ten examples, one import changed."""

# Hangs on dkgp/commands/recipe.py.
