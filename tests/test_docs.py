"""References in the documents exist: a file that was written but not added is missing in a clean checkout alone."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from autoscaler.cli.main import main
from autoscaler.config.policy.parse import load

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "bench").rglob("*.md")),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(document: Path):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text("utf-8"))
    files = [target for target in targets if "://" not in target]
    assert [target for target in files if not (document.parent / target).exists()] == []


ROOMS = "adapters|app|bench|catalog|cli|config|core|daemon|lab|sim|tests|tools"
PATHS = re.compile(rf"`((?:autoscaler/|(?:{ROOMS})/)[\w/.]+)`")
OTHER_PROJECTS = {"baselines.md"}  # names files of the projects that it compares with


@pytest.mark.parametrize(
    "document",
    [each for each in DOCUMENTS if each.name not in {*OTHER_PROJECTS, "CHANGELOG.md"}],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_file_of_the_code_that_is_named_exists(document: Path):
    named = PATHS.findall(document.read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "autoscaler" / path).exists()] == []


SHOWN = [
    document
    for document in DOCUMENTS
    if not {"decisions", "research-log"} & set(document.parts) and document.name != "CHANGELOG.md"
]


def commands(document: Path) -> list[list[str]]:
    """Return the arguments of each call of the program that a document shows, as a shell would split them."""
    text = document.read_text("utf-8").replace("\\\n", " ")
    lines = re.findall(r"^(?:    |\$ ).*\bvllm-autoscaler (.*)$", text, re.MULTILINE) + re.findall(
        r"`vllm-autoscaler ([^`]*)`", text
    )
    return [shlex.split(line.replace("\n", " "), comments=True) for line in lines]


def called(command: click.Command, arguments: list[str]) -> tuple[click.Command, list[str]]:
    """Return the innermost command that arguments name, and the rest of them."""
    if isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        return called(command.commands[arguments[0]], arguments[1:])
    return command, arguments


@pytest.mark.parametrize("document", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_is_shown_has_these_options(document: Path):
    for arguments in commands(document):
        command, options = called(main, arguments)
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        shown = {each.partition("=")[0] for each in options if each.startswith("--")}
        assert command is main or shown <= known | {"--help"}, arguments


@pytest.mark.parametrize("document", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_shown_annotations_replace_former_ones(document: Path):
    """kubectl refuses another value of an annotation that an object has, unless it may overwrite it."""
    shown = re.findall(r"kubectl (?:-n \S+ )?annotate [^`\n]*\n?[^`\n]*=", document.read_text("utf-8"))
    assert [command for command in shown if "--overwrite" not in command] == []


def test_the_readme_shows_each_way_to_run_it():
    shown = {called(main, arguments)[0].name for arguments in commands(ROOT / "README.md")}
    assert shown >= {"dry-run", "explain", "check"}


@pytest.mark.parametrize("document", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_policy_that_is_shown_is_valid(document: Path, tmp_path: Path):
    blocks = re.findall(r"^```yaml\n(.*?)^```$", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    blocks += [
        re.sub(r"^    ", "", block, flags=re.MULTILINE)
        for block in re.findall(r"(?:^    .*\n)+", document.read_text("utf-8"), re.MULTILINE)
        if "kind: Policy" in block
    ]
    for number, block in enumerate(blocks):
        shown = yaml.safe_load(block)
        if isinstance(shown, dict) and shown.get("kind") == "Policy":
            file = tmp_path / f"{number}.yaml"
            file.write_text(block)
            assert load([file]).policies


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
LOG = sorted((ROOT / "bench" / "research-log").glob("[0-9]*.md"))


@pytest.mark.parametrize("document", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_the_four_parts_and_fits_on_a_page(document: Path):
    lines = document.read_text("utf-8").splitlines()
    assert lines[0].startswith(f"# {int(document.name[:4])}. ")
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Decision",
        "## Alternatives",
        "## Consequences",
    ]
    assert len(lines) <= 60


@pytest.mark.parametrize("documents", [DECISIONS, LOG], ids=["decisions", "research-log"])
def test_the_index_names_every_entry_once(documents: list[Path]):
    index = (documents[0].parent / "README.md").read_text("utf-8")
    named = re.findall(r"^\| \[\d+\]\((\d[^)]+)\) \|", index, re.MULTILINE)
    assert sorted(named) == [document.name for document in documents]


def test_the_map_names_every_page_but_decisions_and_log():
    pages = [page for page in SHOWN if ROOT / "docs" in page.parents and page != ROOT / "docs/README.md"]
    named = re.findall(r"\]\(([^)#]+\.md)", (ROOT / "docs/README.md").read_text("utf-8"))
    assert sorted({str(page.relative_to(ROOT / "docs")) for page in pages} - set(named)) == []


def test_support_names_the_versions_that_the_tests_build():
    built = [
        re.search(rf"^{tool.upper()}=(\S+)", (ROOT / "tools" / script).read_text("utf-8"), re.MULTILINE)
        for tool, script in [
            ("kubernetes", "envtest.sh"),
            ("keda", "keda.sh"),
            ("helm", "helm.sh"),
            ("versitygw", "versitygw.sh"),
        ]
    ]
    told = (ROOT / "docs/reference/support.md").read_text("utf-8")
    assert [found[1] for found in built if found and found[1] not in told] == []
    assert all(built)
