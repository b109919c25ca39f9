"""Verdicts: what the papers print, ours beside it, and by which rule that is met, gone beyond or missed."""
