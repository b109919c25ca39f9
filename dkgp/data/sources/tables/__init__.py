"""Tables of text, dates and gaps: looked over as a whole, and turned into numbers by rules that a store keeps."""

# Hangs on dkgp/models/exact.py.
