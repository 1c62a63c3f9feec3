"""Quantization: grids, steps, and the sites of a model where they apply."""
