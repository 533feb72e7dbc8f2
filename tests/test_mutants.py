"""The tool that counts how many small defects the tests notice, on a tree of one function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripts import script

SOURCE = '''"""Text with 1 + 1 < 3 in it."""
from __future__ import annotations


def least(values: list[int], more: int = 7) -> int:
    """Return the least of them that is above 0."""
    found = [value for value in values if value > 0]  # 2 > 1
    if not found and more:
        raise ValueError(f"none of {len(values) + 1}")
    return min(found) + more
'''
TEST = """
from slackwater.sums.least import least
def test_least():
    assert least([3, 1, 0], 1) == 2
    assert least([2]) == 9
"""
"""It does not notice a raise that is missing."""


@pytest.fixture
def mutants() -> Any:
    return script("tools/mutants.py")


def changes(mutants: Any, source: str) -> set[tuple[int, str]]:
    """The lines that a mutant changes and what they become."""
    found = set()
    for one in mutants.mutants_of("slackwater/x/y.py", source):
        lines = one.apply(source).splitlines()
        compile("\n".join(lines), "mutant", "exec")
        found.add((one.line, lines[one.line - 1].strip()))
    return found


def test_every_kind_of_place_is_found_and_nothing_else(mutants: Any) -> None:
    assert changes(mutants, SOURCE) == {
        (5, "def least(values: list[int], more: int = 8) -> int:"),
        (5, "def least(values: list[int], more: int = 6) -> int:"),
        (7, "found = [value for value in values if value >= 0]  # 2 > 1"),
        (7, "found = [value for value in values if value > 1]  # 2 > 1"),
        (7, "found = [value for value in values if value > (-1)]  # 2 > 1"),
        (8, "if not found or more:"),
        (9, "pass"),
        (10, "return min(found) - more"),
        (10, "return None"),
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a <= b", {"x = a < b"}),
        ("x = (a) == (b)", {"x = (a) != (b)"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a in b", {"x = a not in b"}),
        ("x = 'ä' != a - b", {"x = 'ä' == a - b", "x = 'ä' != a + b"}),
        ("x = a or b or c", {"x = a and b or c", "x = a or b and c"}),
        ("x = True is None", {"x = True is not None"}),
        ("x: Literal[1] = 0.5", {"x: Literal[1] = 1.5", "x: Literal[1] = (-0.5)"}),
        ("x = a * b < c < d", set()),
    ],
)
def test_operators_and_numbers(mutants: Any, line: str, expected: set[str]) -> None:
    assert {text for _, text in changes(mutants, line)} == expected


def test_a_place_over_several_lines(mutants: Any) -> None:
    source = (
        "def f():\n    for x in y:\n        if (a  # or so\n            or b):\n            continue\n"
        "    return (\n        1,\n    )\n"
    )
    found = {one.apply(source) for one in mutants.mutants_of("slackwater/x/y.py", source)}
    assert source.replace("            or b", "            and b") in found
    assert source.replace("continue", "pass") in found
    assert source.replace("(\n        1,\n    )", "None") in found


@pytest.fixture
def tree(mutants: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    (root / "slackwater" / "sums").mkdir(parents=True)
    for folder in ("slackwater", "slackwater/sums"):
        (root / folder / "__init__.py").touch()
    (root / "slackwater" / "sums" / "least.py").write_text(SOURCE)
    (root / "tests" / "sums").mkdir(parents=True)
    monkeypatch.setattr(mutants, "ROOT", root)
    return root


def run(mutants: Any, *args: str) -> Any:
    return CliRunner().invoke(mutants.main, args)


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_survivors_are_listed_and_the_checkout_is_not_touched(mutants: Any, tree: Path) -> None:
    (tree / "tests" / "sums" / "test_least.py").write_text(TEST)
    before = contents(tree)
    result = run(mutants, "sums", "--count", "100")
    assert result.exit_code == 0, result.output
    assert contents(tree) == before
    survivor, _, table = result.stdout.partition("\n\n")
    assert survivor.splitlines() == [
        "slackwater/sums/least.py:9",
        '-        raise ValueError(f"none of {len(values) + 1}")',
        "+        pass",
    ]
    assert table.splitlines()[2:] == ["| sums | 9 | 8 |", "", "8 of 9 killed (89 %); seed 0."]
    assert sorted(line.split()[-1] for line in result.stderr.splitlines()[1:]) == ["SURVIVED"] + 8 * ["killed"]


def test_a_mutant_that_never_ends_is_ended(mutants: Any, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "slackwater" / "sums" / "least.py").write_text("def f(x):\n    while x < 3:\n        x = x + 1\n")
    (tree / "tests" / "sums" / "test_f.py").write_text("from slackwater.sums.least import f\ndef test_f():\n    f(0)\n")
    monkeypatch.setattr(mutants, "_SLACK_S", 1)
    monkeypatch.setattr(mutants, "_TIMES", 2)
    result = run(mutants, "sums", "--count", "100", "--only", "slackwater/sums/least.py:3")
    assert "least.py:3 killed by the time limit" in result.stderr
    assert "2 killed" not in result.stderr, "only the line that was asked for"
    assert result.exit_code == 0, result.output


def test_the_choice_is_the_seeds_and_other_lines_have_no_part_in_it(mutants: Any, tree: Path) -> None:
    listed = [run(mutants, "sums", "--count", "4", "--list", "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert listed[0] == listed[1] != listed[2]
    assert listed[0].count("slackwater/sums/least.py:") == 4
    path = tree / "slackwater" / "sums" / "least.py"
    path.write_text(SOURCE.replace("found = [", "\n    found = ["))
    moved = run(mutants, "sums", "--count", "4", "--list", "--seed", "1").stdout
    assert [line for line in moved.splitlines() if line[0] in "+-"] == [
        line for line in listed[0].splitlines() if line[0] in "+-"
    ]


def test_mistakes_are_sentences(mutants: Any, tree: Path) -> None:
    assert "There is no package 'nope' in slackwater/." in run(mutants, "nope").stderr
    assert "is not PACKAGE=PATH" in run(mutants, "sums", "--tests", "sums=tests/none").stderr
    (tree / "tests" / "sums" / "test_least.py").write_text("def test_it():\n    assert False\n")
    assert "The tests in tests/sums fail without a mutant" in run(mutants, "sums").stderr
