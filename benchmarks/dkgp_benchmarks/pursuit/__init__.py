"""`dkgp bench pursuit`: the figures of the paper on sparse conjugate directions pursuit."""
