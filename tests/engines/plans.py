"""A small plan for three sites, and a Flower app that fits it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slackwater import Client, Plan, Problem, load_traces, plan
from slackwater.engines.flower.app import new_app

START = datetime(2022, 3, 1, tzinfo=UTC)
ZONES = {"lyon": "FR", "dublin": "IE", "helsinki": "FI"}


def small_plan(rounds: int = 4, slack: int = 2, *, fine_tune: int = 1, budget_kg: float = 0.5) -> Plan:
    clients = [Client(name=name, zone=zone, power_w=300.0, required=True) for name, zone in ZONES.items()]
    traces = load_traces("typical", zones=sorted(ZONES.values()), start=START, hours=rounds + slack)
    problem = Problem(
        clients=clients,
        traces=traces,
        start=START,
        rounds=rounds,
        slack=slack,
        fine_tune=fine_tune,
        budget_kg=budget_kg,
    )
    return plan(problem)


def made_app(folder: Path) -> Path:
    new_app(folder)
    return folder


def final_model(folder: Path) -> dict[str, np.ndarray]:
    import torch

    return {name: value.numpy() for name, value in torch.load(folder / "model.pt", weights_only=True).items()}
