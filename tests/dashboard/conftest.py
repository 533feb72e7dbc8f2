"""A dashboard on a free port, a folder to serve, and a real browser."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slackwater.cli.output_commands import open_library
from slackwater.dashboard.server import Dashboard

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture
def serve() -> Iterator[Callable[..., Dashboard]]:
    """Serve a path in a thread; ended when the test is."""
    with ExitStack() as ending:

        def start(what: Path, **options: Any) -> Dashboard:
            server = Dashboard(open_library(what), **({"host": "127.0.0.1", "port": 0} | options))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            ending.callback(thread.join)
            ending.callback(server.close)
            ending.callback(server.shutdown)
            return server

        yield start


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium; where it is missing the tests skip, but not in CI."""
    if shutil.which(CHROMIUM) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{CHROMIUM} is missing, and CI must have it: make browser")
        pytest.skip(f"needs {CHROMIUM} (make browser)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()
