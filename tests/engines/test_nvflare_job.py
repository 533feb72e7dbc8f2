"""A FLARE job's folder: recognised, copied for a run, and created; and what the commands say if it does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli
from slackwater.engines.flower.app import new_app
from slackwater.engines.nvflare.job import Job, is_job, new_job
from slackwater.errors import ScenarioError
from slackwater.live.trust import app_hash


@pytest.fixture
def job(tmp_path: Path) -> Path:
    done = CliRunner().invoke(cli, ["nvflare", "new", str(tmp_path / "my-app")])
    assert done.exit_code == 0, done.output
    return tmp_path / "my-app"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_new_job_is_one_and_a_flower_app_is_none(job: Path, tmp_path: Path) -> None:
    new_app(tmp_path / "flower")
    assert is_job(job)
    assert not is_job(tmp_path / "flower")
    assert not is_job(tmp_path)
    assert json.loads((job / "meta.json").read_text())["name"] == "my-app"
    assert Job.read(job).server_config == Path("app/config/config_fed_server.json")


@pytest.mark.parametrize("name", ["1st", "my app", "a" * 33])
def test_a_name_that_flare_rejects_is_rejected_here(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScenarioError, match="like myapp"):
        new_job(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_with_files_is_not_written_to(job: Path) -> None:
    with pytest.raises(ScenarioError, match="not empty"):
        new_job(job)


def test_a_copy_names_the_run_and_only_the_clients_of_the_plan(job: Path, tmp_path: Path) -> None:
    (job / "rehearsal").mkdir()
    (job / "rehearsal" / "plan.json").write_text("{}")
    (job / "app" / "custom" / "__pycache__").mkdir()
    before = {path: path.read_bytes() for path in job.rglob("*") if path.is_file()}
    copy = Job.read(job).copy_for(tmp_path / "run", ["lyon", "oslo"], tmp_path / "into")
    assert json.loads((copy / "meta.json").read_text())["deploy_map"] == {"app": ["server", "lyon", "oslo"]}
    (workflow,) = json.loads((copy / "app/config/config_fed_server.json").read_text())["workflows"]
    assert workflow["args"]["run"] == str(tmp_path / "run")
    assert workflow["args"]["initial"] == "task:initial_model"
    assert not (copy / "rehearsal").exists()
    assert not (copy / "app" / "custom" / "__pycache__").exists()
    assert {path: path.read_bytes() for path in job.rglob("*") if path.is_file()} == before


def test_a_job_that_names_its_sites_keeps_them(job: Path, tmp_path: Path) -> None:
    change(job / "meta.json", deploy_map={"app": ["server", "lyon"]})
    copy = Job.read(job).copy_for(tmp_path / "run", ["lyon", "oslo"], tmp_path / "into")
    assert json.loads((copy / "meta.json").read_text())["deploy_map"] == {"app": ["server", "lyon"]}


def test_what_does_not_fit_is_said(job: Path, tmp_path: Path) -> None:
    server = job / "app/config/config_fed_server.json"
    change(server, workflows=[{"id": "x", "path": "nvflare.app_common.workflows.fedavg.FedAvg"}])
    with pytest.raises(ScenarioError, match=r"Add \{.*slackwater\.nvflare\.CarbonAware"):
        Job.read(job)
    server.write_text("{")
    with pytest.raises(ScenarioError, match="cannot be read"):
        Job.read(job)
    change(job / "meta.json", deploy_map={})
    with pytest.raises(ScenarioError, match="no deploy_map"):
        Job.read(job)
    (job / "meta.json").rename(job / "meta.conf")
    assert is_job(job)
    with pytest.raises(ScenarioError, match="as JSON"):
        Job.read(job)


def test_a_changed_configuration_changes_the_hash_that_resume_checks(job: Path) -> None:
    before = app_hash(job)
    change(job / "app/config/config_fed_client.json", executors=[])
    assert app_hash(job) != before


def test_a_job_and_an_app_run_each_on_its_own_server(job: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE (pip install 'slackwater[nvflare]')")
    scenario = str(job / "scenario.toml")

    def said(*options: str) -> str:
        done = CliRunner().invoke(cli, ["rehearse", scenario, "--out", str(tmp_path / "run"), *options])
        assert done.exit_code == 2, done.output
        return done.output

    assert "is a FLARE job, which cannot run on a SuperLink" in said("--app", str(job), "--superlink", "near")
    new_app(tmp_path / "flower")
    kit = ("--startup-kit", str(tmp_path))
    assert "A Flower app runs with --superlink" in said("--app", str(tmp_path / "flower"), *kit)
    assert "name it with --app DIR" in said(*kit)
    assert not (tmp_path / "run").exists()
    assert "is not an admin's startup kit" in said("--app", str(job), *kit)
