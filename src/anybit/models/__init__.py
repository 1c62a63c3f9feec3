"""The paper's networks."""

from anybit.models.lenet import lenet5
from anybit.models.resnet import resnet18, resnet20

__all__ = ["lenet5", "resnet18", "resnet20"]
