"""The client: trains in its slots on its own data. FLARE starts it once for a job, and it loops over its slots."""

from __future__ import annotations

import nvflare.client as flare
import task

from slackwater.nvflare import measured

STEPS, BATCH_SIZE, LEARNING_RATE = 20, 32, 0.1


def main() -> None:
    """Train whenever the server sends a model."""
    flare.init()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        with measured(received) as meter:  # measures the energy of this block, and stops it when the slot ends
            data = task.load_data(flare.get_site_name())
            model = task.Model()
            task.load_arrays(model, received.params)
            loss = task.train(
                model,
                data,
                steps=max(1, round(meter.work * STEPS)),  # fewer at a lower power level
                batch_size=BATCH_SIZE,
                lr=LEARNING_RATE,
                out_of_time=lambda: meter.out_of_time,
            )
            meter.result(model.state_dict(), num_examples=len(data[0]), loss=loss)
        flare.send(meter.reply())


if __name__ == "__main__":
    main()
