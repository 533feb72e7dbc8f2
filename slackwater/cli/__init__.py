"""The command line: data on stdout, progress on stderr; exit code 0 success, 1 error, 2 usage, 3 infeasible."""

from slackwater.cli.main import main

__all__ = ["main"]
