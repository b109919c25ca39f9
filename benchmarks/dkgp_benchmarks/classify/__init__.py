"""`dkgp bench classify`: fixed-size least squares support vector machines beside rivals, on the paper's splits."""
