"""anybit: one federated model for every bit-width."""
