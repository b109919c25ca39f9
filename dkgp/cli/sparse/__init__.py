"""`dkgp sparse` on the command line."""
