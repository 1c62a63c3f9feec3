"""Training: from a config to a finished run folder."""
