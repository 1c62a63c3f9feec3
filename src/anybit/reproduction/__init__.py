"""Reproduction: ours beside the paper's figures, cell by cell, and every claim it makes."""
