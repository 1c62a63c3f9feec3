"""Data: sources, splits over clients, and batches on the training device."""
