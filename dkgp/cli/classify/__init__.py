"""`dkgp classify` on the command line."""
