"""A dashboard on a free port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slackwater.cli.output_commands import open_library
from slackwater.dashboard.server import Dashboard

PATIENCE_MS = 60_000


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


@pytest.fixture
def page_of(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page on a server; it fails the test if the page has errors or asks for anything elsewhere."""
    contexts, wrong = [], []

    def go(
        server: Dashboard,
        view: str = "plan",
        *,
        wide: int = 1280,
        tall: int = 900,
        scheme: str = "light",
        address: str = "",
        script: str = "",
    ) -> Any:
        """Open a view, at another address of the server if given; `script` runs before the page's own."""
        base = address or f"http://127.0.0.1:{server.port}/"
        context = browser.new_context(
            viewport={"width": wide, "height": tall},
            color_scheme=scheme,
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith((base, "data:", "blob:")) or wrong.append(f"asked for {request.url}")
            ),
        )
        if script:
            page.add_init_script(script)
        token = f"?token={server.guard.token}" if server.guard.token else ""
        page.goto(f"{base}{token}#{view}")
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield go
    for context in contexts:
        context.close()
    assert wrong == []
