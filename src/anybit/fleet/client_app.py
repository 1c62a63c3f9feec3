"""The ClientApp. Flower starts a new process for every message, so torch is imported only by messages that need it."""

from __future__ import annotations

from anybit.fleet.flower import ClientApp, ConfigRecord, Context, Message, RecordDict
from anybit.fleet.node import read_node

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Answer with this device's client number, width and role."""
    node = read_node(context.node_config)
    answer = ConfigRecord({"client": node.client, "width": node.width, "role": node.role})
    return Message(RecordDict({"answer": answer}), reply_to=message)


@app.train()
@app.evaluate()
@app.query("ranges")
@app.query("errors")
def work(message: Message, context: Context) -> Message:
    """Do the work that a message's type names, on this device's examples."""
    from anybit.fleet.device import Device

    trusted = str(context.run_config.get("imports", "")).split()
    device = Device(message.content, read_node(context.node_config), trusted)
    return Message(device.answer(message.metadata.message_type.rpartition(".")[2]), reply_to=message)
