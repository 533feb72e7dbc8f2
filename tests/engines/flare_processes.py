"""A real FLARE server and sites on loopback, as `nvflare poc prepare` provisions them, with mutual TLS; all killed at the end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from processes import BIN, HOST, free_port, kill_tree, until
from scripts import REPOSITORY

ADMIN = "admin@nvidia.com"
PROJECT = """\
api_version: 3
name: tests
description: For tests
participants:
  - {{name: server, type: server, org: nvidia, default_host: localhost, fed_learn_port: {port}}}
  - {{name: {admin}, type: admin, org: nvidia, role: project_admin}}
{sites}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


class FlareFederation:
    """A server and sites; each of them is a process group, which is killed as a whole."""

    def __init__(self, folder: Path, sites: Iterable[str]) -> None:
        self.folder, self.sites, self.port = folder, list(sites), free_port()
        self.kits = folder / "poc" / "tests" / "prod_00"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def admin(self) -> Path:
        """The admin's startup kit."""
        return self.kits / ADMIN

    def __enter__(self) -> FlareFederation:
        sites = "\n".join(f"  - {{name: {name}, type: client, org: nvidia}}" for name in self.sites)
        project = self.folder / "project.yml"
        project.write_text(PROJECT.format(port=self.port, admin=ADMIN, sites=sites))
        done = subprocess.run(
            [str(BIN / "nvflare"), "poc", "prepare", "-i", str(project)],
            capture_output=True, text=True, env=self.env(), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert self.admin.is_dir(), f"{done.stdout}\n{done.stderr}"
        try:
            self.start("server")
            for name in self.sites:
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self.running.values():
            kill_tree(process)

    def start(self, name: str) -> None:
        """Start the server or a site with the script of its kit; the server listens when this returns."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(self.kits / name / "startup" / "sub_start.sh"), "--once"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env(), start_new_session=True,
            )  # fmt: skip
        if name == "server":
            until(self._listens, "the FLARE server listens")

    def kill(self, name: str) -> None:
        """SIGKILL to the server or a site, and to the process of its job."""
        kill_tree(self.running[name])

    def tail(self, lines: int = 15) -> str:
        """Ends of all logs, for a test that fails."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            parts += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(parts)

    def env(self) -> dict[str, str]:
        (self.folder / "home").mkdir(exist_ok=True)
        return {
            **os.environ,
            "HOME": str(self.folder / "home"),  # FLARE keeps settings there
            "NVFLARE_POC_WORKSPACE": str(self.folder / "poc"),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))),
        }

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False
