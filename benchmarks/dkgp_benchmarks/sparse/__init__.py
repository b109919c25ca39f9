"""Sparse models side by side: accuracy, what is proven, time and memory."""
