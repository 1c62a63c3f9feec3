"""All names of Flower that anybit uses, with a hint where it is not installed."""

from __future__ import annotations

from anybit.errors import MissingExtra

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ModuleNotFoundError:
    raise MissingExtra("flwr", "flower", "a fleet") from None

__all__ = ["Array", "ArrayRecord", "ClientApp", "ConfigRecord", "Context", "Grid", "Message", "RecordDict", "ServerApp"]
