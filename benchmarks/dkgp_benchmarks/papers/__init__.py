"""The experiments of the papers, measured here."""
