"""`dkgp pursue`: its options."""
