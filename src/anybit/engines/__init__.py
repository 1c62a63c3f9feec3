"""Engines: how a cohort is executed."""
