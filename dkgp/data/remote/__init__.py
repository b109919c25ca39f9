"""Local disks and object stores as one: addresses, conditional writes, retries."""

# Hangs on dkgp/models/exact.py.
