"""requirements/ pins every package of pyproject.toml, with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED = {
    "run": PROJECT["dependencies"] + EXTRAS["weights"] + EXTRAS["webhook"],  # the image runs all of them
    "dev": PROJECT["dependencies"] + EXTRAS["dev"],
}
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def stated(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Return each package of a file by its name, with the lines of its hashes."""
    found: dict[str, tuple[Requirement, list[str]]] = {}
    hashes: list[str] = []
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if line.startswith(" "):
            hashes.append(line)
        else:
            requirement, hashes = Requirement(line.removesuffix(" \\")), []
            found[canonicalize_name(requirement.name)] = requirement, hashes
    return found


@pytest.mark.parametrize("name", ["run", "dev", "build"])
def test_every_package_has_one_version_and_hashes(name: str):
    for requirement, hashes in stated(name).values():
        assert [each.operator for each in requirement.specifier] == ["=="], requirement
        assert requirement.url is None
        assert hashes, requirement
        assert all(map(HASH.match, hashes)), requirement


@pytest.mark.parametrize("name", ASKED)
def test_every_required_package_is_pinned_in_an_allowed_version(name: str):
    found = stated(name)
    for asked in map(Requirement, ASKED[name]):
        requirement, _ = found[canonicalize_name(asked.name)]
        (version,) = (each.version for each in requirement.specifier)
        assert asked.specifier.contains(Version(version)), asked


def test_tests_use_the_versions_of_the_image():
    tested = stated("dev")
    for name in ("run", "build"):
        for package, (requirement, _) in stated(name).items():
            assert tested[package][0].specifier == requirement.specifier, package


def test_version_is_one_in_package_manifests_and_changelog():
    version = PROJECT["version"]
    stated = [path.read_text() for path in (ROOT / "manifests").rglob("*.yaml")]
    images = [image for text in stated for image in re.findall(r"\bimage[:=] ?(vllm-autoscaler:\S+)", text)]
    assert len(images) == 6
    assert set(images) == {f"vllm-autoscaler:{version}"}
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
