"""What `.ci/run` and the workflows call, and when the laboratory's suite runs."""

import os
import re
import shlex
import subprocess
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


MAKE = """#!/bin/sh
case " $* " in *" $FAILING "*) exit 2;; *" $KILLING "*) kill -9 $PPID; exit;; esac
echo "=== 3 passed in 1 s ==="
"""
CHECKS = ("test", "test-lab", "test-keda", "lint", "types", "contracts", "site")


def run_ci(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` with a `make` that fails for one target, or kills whoever called it."""
    scripts = {".ci/run": SCRIPT, "tools/keda.sh": "#!/bin/sh\n", "bin/make": MAKE}
    for path, text in scripts.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o700)
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FAILING": "-", "KILLING": "-", **variables}
    run = folder / ".ci" / "run"
    return subprocess.run([run], env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("check", CHECKS)
def test_the_ci_fails_when_one_check_fails(check: str, tmp_path: Path) -> None:
    done = run_ci(tmp_path, FAILING=check)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, f"failed: {check}")


def test_the_ci_fails_when_its_checks_are_killed(tmp_path: Path) -> None:
    done = run_ci(tmp_path, KILLING="types")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "failed: checks")


def test_the_ci_succeeds_when_all_checks_do(tmp_path: Path) -> None:
    done = run_ci(tmp_path)
    assert (done.returncode, done.stdout.count("3 passed")) == (0, 12), done.stdout
