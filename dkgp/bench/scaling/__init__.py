"""Runs with more and more workers, beside what the plan foresees."""
