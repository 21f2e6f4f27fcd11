"""What `.ci/run` and the workflows call, and when the laboratory's suite runs."""

import re
import shlex
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = (ROOT / ".ci" / "run").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def laboratory() -> list[Path]:
    """Return the paths whose change runs the laboratory's suite."""
    (listed,) = re.findall(r"^LABORATORY=\((.*?)^\)", SCRIPT, re.MULTILINE | re.DOTALL)
    return [ROOT / path for path in shlex.split(listed)]


def test_each_path_of_the_laboratory_exists() -> None:
    assert [path for path in laboratory() if not path.exists()] == []


def test_all_that_the_laboratory_imports_runs_its_suite() -> None:
    graph = grimp.build_graph("autoscaler")
    imported = {
        ROOT.joinpath(*module.split("."))
        for room in ("autoscaler.lab", "autoscaler.sim")
        for module in graph.find_upstream_modules(room, as_package=True)
    }
    files = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in imported]
    watched = laboratory()
    missing = [str(file) for file in files if not any(file == path or path in file.parents for path in watched)]
    assert missing == []
    assert len(files) > 100


WORKFLOWS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github" / "workflows").glob("*.yml"))
CALL = re.compile(r"^ *(?:- )?(?:run: )?(?:make|tests) ([a-z-]+)(?: &>.*)?$", re.MULTILINE)


def called(path: str) -> set[str]:
    """Return the targets that a script or a workflow calls."""
    return set(CALL.findall((ROOT / path).read_text("utf-8")))


@pytest.mark.parametrize("path", [".ci/run", *WORKFLOWS])
def test_every_target_that_is_called_exists(path: str) -> None:
    assert called(path) <= TARGETS


def test_each_suite_is_run_by_the_ci_or_at_night() -> None:
    suites = {target for target in TARGETS if re.fullmatch(r"test(-[a-z]+)?", target)}
    assert suites - called(".ci/run") - called(".github/workflows/nightly.yml") == {"test-unit"}
