"""Theory: the convergence theorem, computable and checked."""

from anybit.theory.theorem import (
    Bound,
    Coefficients,
    Condition,
    Method,
    Setting,
    bound,
    check,
    coefficients,
    conditions,
    drift_bound,
    irreducible,
    largest_eta_c,
    noise_energy,
    radius,
    violation,
)

__all__ = ["Bound", "Coefficients", "Condition", "Method", "Setting", "bound", "check", "coefficients", "conditions",
           "drift_bound", "irreducible", "largest_eta_c", "noise_energy", "radius", "violation"]
