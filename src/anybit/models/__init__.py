"""The paper's networks, a small one for the demo, and small ones for text."""

from anybit.models.lenet import lenet5
from anybit.models.mlp import mlp
from anybit.models.resnet import resnet18, resnet20
from anybit.models.text import char_lstm, char_transformer

__all__ = ["char_lstm", "char_transformer", "lenet5", "mlp", "resnet18", "resnet20"]
