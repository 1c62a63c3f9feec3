"""Sweeps: many runs, planned, trained side by side, and their results."""
