"""Config: every setting of a run, with its default and its reason."""

from anybit.config.options import (
    OBJECT,
    ClientOptions,
    Component,
    ComputeOptions,
    Config,
    Convolution,
    EngineName,
    EvaluationOptions,
    FleetOptions,
    Precision,
    RangeOptions,
    from_recipe,
)

__all__ = ["OBJECT", "ClientOptions", "Component", "ComputeOptions", "Config", "Convolution", "EngineName",
           "EvaluationOptions", "FleetOptions", "Precision", "RangeOptions", "from_recipe"]
