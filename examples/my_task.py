"""Your own task: three sites, each with points of another part of a spiral, trained by a plan. Runs in seconds."""

import torch
from torch import nn

import slackwater as sw
from slackwater.training.task import Samples, Task


def spiral(first: float, last: float, count: int) -> Samples:
    """Return points on two arms, which the model must separate, between two distances from the centre."""
    turn = torch.empty(count).uniform_(first, last)
    arm = torch.randint(0, 2, (count,))
    angle = 3 * turn + torch.pi * arm
    x = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) + 0.03 * torch.randn(count, 2)
    return Samples(x=x, y=arm)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


torch.manual_seed(0)
parts = [(0.2, 0.8), (0.6, 1.2), (1.0, 1.6)]
task = Task(
    name="spiral",
    clients=[spiral(*part, count=400) for part in parts],
    client_tests=[spiral(*part, count=200) for part in parts],
    test=spiral(0.2, 1.6, count=1000),
    model=model,
)

sites = [sw.Client(name=zone, zone=zone, power_w=300) for zone in ("FR", "DE", "IE")]
traces = sw.load_traces("typical", zones=["FR", "DE", "IE"])
plan = sw.plan(sw.Problem(clients=sites, traces=traces, rounds=8, slack=40, budget_kg=1.5))
result = sw.train(plan, task, local_steps=30, batch_size=64, lr=0.1, seed=0)
print(f"accuracy {result.accuracy:.3f} with {result.emissions_kg:.3f} kg CO2e")
