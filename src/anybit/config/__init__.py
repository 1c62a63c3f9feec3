"""Config: every setting of a run, with its default and its reason."""

from anybit.config.options import (
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

__all__ = ["ClientOptions", "Component", "ComputeOptions", "Config", "Convolution", "EngineName", "EvaluationOptions",
           "FleetOptions", "Precision", "RangeOptions", "from_recipe"]
