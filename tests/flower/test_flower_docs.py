"""What docs/flower.md shows works, and its commands exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from plans import ZONES, small_plan
from processes import BIN
from torch import nn

import slackwater.flower
from slackwater.flower import InProcessGrid
from slackwater.flower.records import to_arrays
from slackwater.live import LiveSettings, prepare

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")


class Model(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)


def fit(model: nn.Module, data: object, *, stop: object) -> float:
    model.get_parameter("bias").data += 1
    return 0.5


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client, server, strategy, in_process = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, object] = {"Model": Model, "fit": fit, "load_data": lambda context: [1, 2, 3]}
    exec(client, names)
    app = names["app"]
    grid = InProcessGrid(app, {name: {"zone": zone} for name, zone in ZONES.items()})  # type: ignore[arg-type]

    prepare("one", small_plan(), LiveSettings(slot_seconds=0.0))
    exec(server, names)
    context = Context(1, 1, {}, RecordDict(), {"slackwater-run": str(tmp_path / "one")})
    names["app"](grid, context)  # type: ignore[operator]
    assert (tmp_path / "one" / "model.pt").exists()

    small_plan().save(tmp_path / "run" / "plan.json")
    prepare("run", small_plan(), LiveSettings(slot_seconds=0.0))
    initial = {name: np.zeros(value.shape, dtype=np.float32) for name, value in Model().state_dict().items()}
    names |= {"slackwater": slackwater, "grid": grid, "initial_arrays": to_arrays(initial)}
    exec(strategy, names)
    assert names["result"].arrays["bias"].numpy().mean() > 0  # type: ignore[attr-defined]
    exec(in_process, names | {"client_app": app})


@pytest.mark.parametrize(
    "command", ["flower-superlink", "flower-superexec", "flower-supernode", "flwr supernode register"]
)
def test_options_exist(command: str) -> None:
    joined = re.sub(r"\\\n\s+", "", PAGE)
    used = {
        option
        for line in re.findall(rf"^    {command} (.*)$", joined, flags=re.MULTILINE)
        for option in re.findall(r"(?<!\S)--[a-z-]+", line.partition("#")[0])
    }
    assert used
    program, *rest = command.split()
    text = subprocess.run([str(BIN / program), *rest, "--help"], capture_output=True, text=True, check=True).stdout
    assert not {option for option in used if option not in text}
