"""The ClientApp. Every message starts a process of its own, so torch is imported only by the messages that need it."""

from __future__ import annotations

from anybit.fleet.flower import ClientApp, ConfigRecord, Context, Message, RecordDict
from anybit.fleet.node import read_node

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Who this device is."""
    node = read_node(context.node_config)
    answer = ConfigRecord({"client": node.client, "width": node.width, "role": node.role})
    return Message(RecordDict({"answer": answer}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    return _work("train", message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return _work("evaluate", message, context)


@app.query("ranges")
def ranges(message: Message, context: Context) -> Message:
    return _work("ranges", message, context)


@app.query("errors")
def errors(message: Message, context: Context) -> Message:
    return _work("errors", message, context)


def _work(what: str, message: Message, context: Context) -> Message:
    from anybit.fleet.device import Device

    trusted = str(context.run_config.get("imports", "")).split()
    device = Device(message.content, read_node(context.node_config), trusted)
    return Message(device.answer(what), reply_to=message)
