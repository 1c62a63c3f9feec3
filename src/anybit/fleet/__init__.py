"""Real devices over Flower: a ServerApp and a ClientApp around the federated algorithm."""
