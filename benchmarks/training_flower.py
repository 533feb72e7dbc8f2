"""The same rounds by Flower's Ray simulation, in a process of its own: `python training_flower.py JSON`.

Needs only flwr[simulation] and PyTorch. A plain app of Flower's message API: FedAvg over all nodes, no evaluation, one
core and one thread for each client, and the local steps of the bare loop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import torch
from training_way import Baton, samples_of, steps_of, workspace

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Paced(FedAvg):
    """FedAvg that does a round when it is told to."""

    def __init__(self, baton: Baton, **settings: Any) -> None:
        super().__init__(**settings)
        self._baton = baton

    def configure_train(self, server_round: int, *rest: Any) -> Any:
        """Wait for the word, then as usual."""
        self._baton.wait()
        return super().configure_train(server_round, *rest)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """As usual, then report; a client that failed would make the round look fast."""
        came = list(replies)
        arrays, metrics = super().aggregate_train(server_round, came)
        if metrics is None or len(came) < self.min_train_nodes or any(reply.has_error() for reply in came):
            raise RuntimeError(f"Flower's round {server_round} failed: {came}")
        self._baton.done(float(cast(float, metrics["loss"])))
        return arrays, metrics


def simulate(job: dict[str, Any]) -> None:
    """All clients in every round."""
    folder, clients, rounds = Path(job["folder"]), len(job["rounds"][0]), len(job["rounds"])
    baton = Baton()

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        local = workspace(folder)
        number = cast(int, message.content.config_records["config"]["server-round"]) - 1
        client = int(context.node_config["partition-id"])
        local.model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loss = local.go_on(samples_of(folder, client), steps_of(folder, number, client))
        content = RecordDict(
            {
                "arrays": ArrayRecord(local.model.state_dict()),
                # Equal weights, as ours has.
                "metrics": MetricRecord({"num-examples": 1, "loss": loss}),
            }
        )
        return Message(content=content, reply_to=message)

    def serve(grid: Grid, context: Context) -> None:
        model = torch.load(folder / "model.pt", weights_only=False)
        strategy = Paced(
            baton, fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)

    client_app, server_app = ClientApp(), ServerApp()
    client_app.train()(train)
    server_app.main()(serve)
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": job["threads"]},
        },
    )


if __name__ == "__main__":
    simulate(json.loads(sys.argv[1]))
