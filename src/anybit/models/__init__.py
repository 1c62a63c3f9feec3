"""The paper's networks, and small ones for text."""

from anybit.models.lenet import lenet5
from anybit.models.resnet import resnet18, resnet20
from anybit.models.text import char_lstm, char_transformer

__all__ = ["char_lstm", "char_transformer", "lenet5", "resnet18", "resnet20"]
