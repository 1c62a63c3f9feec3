"""Real low-bit artifacts of a trained model, and their verification."""
