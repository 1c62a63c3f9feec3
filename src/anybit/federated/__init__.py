"""The federated algorithm: rounds, server optimizers, cohorts and keyed randomness."""
