"""The image, as far as it can be checked without building it: the Dockerfile, and the wheel that it installs."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD_TOOLS = re.compile(r"\b(gcc|g\+\+|clang|make|cmake|build-essential|golang|cargo|rustc|apt-get|apt|pip|dev)\b")
FOR_DEVELOPERS = {".sh", ".md"}
Stage = list[tuple[str, str]]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (INSTRUCTION, arguments), continued lines joined, comments left out."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        if line.strip():
            word, _, arguments = line.strip().partition(" ")
            yield word.upper(), arguments.strip()


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    found: list[Stage] = []
    for word, arguments in instructions((ROOT / "Dockerfile").read_text()):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, arguments))
    return found


def arguments_of(stage: Stage, wanted: str) -> list[str]:
    return [arguments for word, arguments in stage if word == wanted]


def test_image_has_a_build_stage_and_a_slim_final_stage(stages: list[Stage]):
    build, final = stages
    base = arguments_of(build, "FROM")[0].split(" AS ")[0]
    assert arguments_of(final, "FROM") == [base]
    assert re.search(r"^ARG PYTHON=python:3\.\d+-slim-\w+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_final_stage_only_copies_the_installed_package(stages: list[Stage]):
    final = stages[-1]
    assert arguments_of(final, "COPY") == ["--from=build /opt/vllm-autoscaler /opt/vllm-autoscaler"]
    assert not arguments_of(final, "RUN") + arguments_of(final, "ADD")
    assert not [arguments for word, arguments in final if BUILD_TOOLS.search(arguments) and word != "LABEL"]


def test_the_build_never_compiles_a_dependency(stages: list[Stage]):
    dependencies, package = arguments_of(stages[0], "RUN")
    for install in re.findall(r"install [^&]*", dependencies):
        assert "--only-binary :all:" in install
        assert "--require-hashes" in install
    assert "--no-deps --no-build-isolation" in package


def test_the_user_is_a_number_that_is_not_root(stages: list[Stage]):
    [user] = arguments_of(stages[-1], "USER")  # a name could not be checked by runAsNonRoot
    assert [int(part) > 0 for part in user.split(":")] == [True, True]


def test_the_entry_point_is_a_console_script_of_the_package(stages: list[Stage]):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert arguments_of(stages[-1], "ENTRYPOINT") == ['["vllm-autoscaler"]']
    assert "vllm-autoscaler" in scripts
    assert "PATH=/opt/vllm-autoscaler/bin:$PATH" in arguments_of(stages[-1], "ENV")[0]


def test_build_context_has_exactly_the_copied_files(stages: list[Stage]):
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for arguments in arguments_of(stages[0], "COPY") for source in arguments.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.slow
def test_the_wheel_holds_every_file_that_the_package_needs(tmp_path: Path):
    """An editable install finds a page or a schema that the package's metadata forgot; the image would not."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "autoscaler", source / "autoscaler", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], cwd=source, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("autoscaler/")}
        entry_points = archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt")))
    written = {path for path in (source / "autoscaler").rglob("*") if path.is_file()}
    needed = {str(path.relative_to(source)) for path in written if path.suffix not in FOR_DEVELOPERS}
    assert needed - shipped == set()
    assert b"vllm-autoscaler = autoscaler.cli.main:main" in entry_points
