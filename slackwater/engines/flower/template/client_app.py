"""The client: trains in its slots on its own data."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from slackwater.flower import measured, register

from . import task

app = ClientApp()
register(app)  # lets the server ask for the name of this node


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train for one round."""
    with measured(msg, context) as meter:  # measures the energy of this block, and stops it when the slot ends
        data = task.load_data(int(context.node_config["partition-id"]))
        model = task.Model()
        model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
        loss = task.train(
            model,
            data,
            steps=max(1, round(meter.work * int(context.run_config["local-steps"]))),  # fewer at a lower power level
            batch_size=int(context.run_config["batch-size"]),
            lr=float(context.run_config["lr"]),
            out_of_time=lambda: meter.out_of_time,
        )
    return meter.reply(model.state_dict(), num_examples=len(data[0]), loss=loss)
