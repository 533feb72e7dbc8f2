"""FLARE's executor of a Client API script, under one name for all versions: FLARE 2.9 renamed it."""

from __future__ import annotations

from typing import Any

try:
    from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor as _Executor

    _MODE: dict[str, Any] = {"execution_mode": "in_process"}
except ImportError:  # before FLARE 2.9
    from nvflare.app_common.executors.in_process_client_api_executor import InProcessClientAPIExecutor as _Executor

    _MODE = {}


class ScriptExecutor(_Executor):  # type: ignore[misc, unused-ignore]
    """Runs a script that uses the Client API in the process of the job, with models as NumPy arrays by name."""

    def __init__(self, script: str, script_args: str = "") -> None:
        """Run a script of the job's custom folder; it is started once, and loops over the slots of its site."""
        super().__init__(task_script_path=script, task_script_args=script_args, params_exchange_format="numpy", **_MODE)
