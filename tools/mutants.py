"""Count how many small defects the tests detect: `python tools/mutants.py planning ledger --count 24`.

A mutant is the package with one change: a comparison, + and -, `and` and `or`, a number by one, a `return` of None, or a
removed `raise` or `continue`. The tests of the folder that mirrors the package run on each mutant in turn. A mutant that
no test detects survives and is printed as file:line and diff. All work happens in a temporary copy of the tree. The choice
depends only on the seed and the changed line, so most mutants stay the same when other lines change.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "slackwater"
_LEFT_OUT = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
_FLIPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
"""By operator: its pattern in the source, and the replacement."""
_TIMES, _SLACK_S = 3, 60
"""Time limit of a mutant: this many times the time without it, plus this many seconds."""
_TIMED_OUT = 1000
_ENDED = -signal.SIGTERM
"""Exit code of tests that another process ended; they run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One place in a file, and its replacement."""

    path: str
    """Path from the root of the tree, with /."""
    line: int
    first: int
    stop: int
    """Characters [first, stop) of the file are replaced."""
    text: str

    @property
    def package(self) -> str:
        """Return its part of the package, such as `planning`."""
        return self.path.split("/")[1]

    def apply(self, source: str) -> str:
        """Return the source with the change."""
        return source[: self.first] + self.text + source[self.stop :]

    def rank(self, source: str, seed: int) -> str:
        """Return a random number that does not depend on other lines; mutants of equal lines differ by their order."""
        lines = source.splitlines()
        column = self.first - (source.rfind("\n", 0, self.first) + 1)
        same = lines[: self.line - 1].count(lines[self.line - 1])
        key = (seed, self.path, lines[self.line - 1], same, column, self.text)
        return hashlib.sha256(repr(key).encode()).hexdigest()

    def diff(self, source: str) -> str:
        """Return the change as a diff without context."""
        pair = (source.splitlines(), self.apply(source).splitlines())
        return "\n".join(
            line for line in difflib.unified_diff(*pair, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
        )


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return every mutant of a file, in order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def position(line: int, column: int) -> int:
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())  # columns of the syntax tree count bytes

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset)

    found = []
    for first, stop, text in _changes(ast.parse(source), source, span):
        number = source.count("\n", 0, first) + 1
        found.append(Mutant(path=path, line=number, first=first, stop=stop, text=text))
    return sorted(found, key=lambda one: (one.first, one.text))


def _changes(
    tree: ast.Module, source: str, span: Callable[[ast.expr | ast.stmt], tuple[int, int]]
) -> Iterator[tuple[int, int, str]]:
    """Yield the places to change: [first, stop) and the replacement."""
    for node in _code(tree):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from _operator(source, span(left)[1], span(right)[0], op)
            case ast.BinOp(left=left, op=op, right=right):
                yield from _operator(source, span(left)[1], span(right)[0], op)
            case ast.BoolOp(op=op, values=values):
                for before, after in pairwise(values):
                    yield from _operator(source, span(before)[1], span(after)[0], op)
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                for changed in (value + 1, value - 1):
                    yield *span(node), repr(changed) if changed >= 0 else f"({changed!r})"
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield *span(value), "None"
            case ast.Raise() | ast.Continue():
                yield *span(node), "pass"


def _operator(source: str, first: int, stop: int, op: ast.AST) -> Iterator[tuple[int, int, str]]:
    """Yield the change of the operator between two operands, without its parentheses and comments."""
    if type(op) not in _FLIPPED:
        return
    written, instead = _FLIPPED[type(op)]
    between = re.sub(r"#.*", lambda comment: " " * len(comment[0]), source[first:stop])
    place = re.search(written, between)
    if place is not None:
        yield first + place.start(), first + place.end(), instead


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the executed nodes: no annotations, and nothing inside f-strings, whose columns older versions lack."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def chosen(root: Path, packages: list[str], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants, about the same number from each package."""
    picked: list[Mutant] = []
    for number, package in enumerate(packages):
        ranked = []
        for path in sorted((root / PACKAGE / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            name = path.relative_to(root).as_posix()
            ranked += [(one.rank(source, seed), one) for one in mutants_of(name, source)]
        share = count // len(packages) + (number < count % len(packages))
        picked += [one for _, one in sorted(ranked, key=lambda pair: pair[0])[:share]]
    return picked


def run_tests(root: Path, tests: list[str], limit_s: float | None) -> int:
    """Return the exit code of pytest on the tree at `root`; a run past its limit is killed with its children."""
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant of the same length and second would reuse the older bytecode
        "SLACKWATER_SHARED_DATA": os.environ.get("SLACKWATER_SHARED_DATA", str(ROOT.parent / "shared" / "data")),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return _TIMED_OUT
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def tests_of(root: Path, mutant: Mutant, given: dict[str, list[str]]) -> list[str]:
    """Return the tests to run: files named after the module first, then all requested tests of the package."""
    every = given.get(mutant.package, [f"tests/{mutant.package}"])
    module = Path(mutant.path).stem
    named = [
        path.relative_to(root).as_posix()
        for one in every
        for path in sorted((root / one).glob(f"test_*{module}*.py") if (root / one).is_dir() else [])
    ]
    return [*named, *every]


def _parsed(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for value in values:
        package, equals, paths = value.partition("=")
        missing = [path for path in paths.split(",") if not (ROOT / path).exists()]
        if not equals or missing:
            raise click.BadParameter(f"{value!r} is not PACKAGE=PATH,PATH with paths of this tree.", context, parameter)
        given[package] = paths.split(",")
    return given


@click.command()
@click.argument("packages", nargs=-1, required=True)
@click.option("--count", type=click.IntRange(1), default=84, show_default=True, help="Number of mutants.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the choice.")
@click.option(
    "--tests", multiple=True, metavar="PACKAGE=PATHS", callback=_parsed, help="Other tests, separated by commas."
)
@click.option("--only", metavar="FILE:LINE", help="Only the chosen mutants of this line.")
@click.option("--list", "listed", is_flag=True, help="Show the mutants without running tests.")
def main(
    packages: tuple[str, ...], count: int, seed: int, tests: dict[str, list[str]], only: str | None, listed: bool
) -> None:
    """Run the tests of PACKAGES (parts of the package, like planning) on mutants, and list the survivors."""
    for package in packages:
        if not (ROOT / PACKAGE / package).is_dir():
            raise click.ClickException(f"There is no package {package!r} in {PACKAGE}/.")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder) / "tree"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        picked = [one for one in chosen(root, list(packages), count, seed) if only in (None, f"{one.path}:{one.line}")]
        if listed:
            for one in picked:
                click.echo(f"{one.path}:{one.line}\n{one.diff((root / one.path).read_text(encoding='utf-8'))}")
            return
        limits = {package: _limit_s(root, package, tests) for package in dict.fromkeys(one.package for one in picked)}
        survivors: list[Mutant] = []
        killed = dict.fromkeys(limits, 0)
        for number, one in enumerate(picked, 1):
            path = root / one.path
            source = path.read_text(encoding="utf-8")
            path.write_text(one.apply(source), encoding="utf-8")
            try:
                code = _ENDED
                while code == _ENDED:
                    code = run_tests(root, tests_of(root, one, tests), limits[one.package])
            finally:
                path.write_text(source, encoding="utf-8")
            result = {0: "SURVIVED", _TIMED_OUT: "killed by the time limit"}.get(code, "killed")
            click.echo(f"{number} of {len(picked)} {one.path}:{one.line} {result}", err=True)
            if code == 0:
                survivors.append(one)
                click.echo(f"{one.path}:{one.line}\n{one.diff(source)}")
            else:
                killed[one.package] += 1
        click.echo("\n| package | mutants | killed |\n|---|---:|---:|")
        for package, many in killed.items():
            click.echo(f"| {package} | {sum(one.package == package for one in picked)} | {many} |")
        share = 100 * sum(killed.values()) / max(len(picked), 1)
        click.echo(f"\n{sum(killed.values())} of {len(picked)} killed ({share:.0f} %); seed {seed}.")


def _limit_s(root: Path, package: str, tests: dict[str, list[str]]) -> float:
    """Return the time limit of a mutant, s. The tests must pass without one."""
    began = time.perf_counter()
    asked = tests.get(package, [f"tests/{package}"])
    if run_tests(root, asked, None):
        raise click.ClickException(f"The tests in {', '.join(asked)} fail without a mutant. Fix them first.")
    took = time.perf_counter() - began
    click.echo(f"{package}: {took:.0f} s without a mutant", err=True)
    return _TIMES * took + _SLACK_S


if __name__ == "__main__":
    main()
