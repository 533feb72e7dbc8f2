"""The client: trains in its slots on its own data."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from slackwater.flower import measured, register

from . import task

app = ClientApp()
register(app)  # lets the server ask for the name of this node


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(msg: Message, context: Context) -> Message:
    with measured(msg, context) as meter:  # measures the energy of this block, and stops it when the slot ends
        data = task.load_data(int(context.node_config["partition-id"]))
        model = {name: array.numpy() for name, array in msg.content.array_records["arrays"].items()}
        model, loss = task.train(model, data, epochs=int(context.run_config["local-epochs"]), seed=meter.seed or 0)
    return meter.reply(model, num_examples=len(data[0]), loss=loss)
