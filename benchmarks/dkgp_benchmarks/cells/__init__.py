"""Fourier methods beside products by cells."""
