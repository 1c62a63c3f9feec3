"""Engines, which execute the clients of a cohort."""
