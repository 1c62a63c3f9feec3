"""Quantization: grids, step sizes, and the sites of a model where they apply."""
