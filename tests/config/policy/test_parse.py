"""Policies from files: what bad input gets, and what is loaded."""

import random
import shutil
import string
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.findings import Finding, PolicyError
from autoscaler.config.policy.parse import PolicyBook, load, shipped

ROOT = Path(__file__).parents[3]

HEAD = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata:
  name: test
spec:
"""
BARE = HEAD.removesuffix("spec:\n")


def write(folder: Path, text: str, name: str = "p.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def findings_of(*paths: Path, default: str = "interactive") -> tuple[Finding, ...]:
    with pytest.raises(PolicyError) as caught:
        load(paths, default)
    return caught.value.findings


def test_shipped_policies_are_valid():
    book = load()
    assert sorted(book.policies) == ["batch", "development", "interactive", "realtime"]
    assert book.default == "interactive"
    assert all(policy.name == name for name, policy in book.policies.items())


def test_the_manifests_carry_the_shipped_policies_unchanged():
    carried = {path.name: path.read_text() for path in (ROOT / "manifests" / "base" / "policies").glob("*.yaml")}
    assert carried == {path.name: path.read_text() for path in shipped().glob("*.yaml")}


def test_the_example_of_the_design_is_read_in_full(tmp_path: Path):
    text = HEAD + (
        "  objective: {ttft: 150ms, itl: 50ms, attainment: 0.99}\n"
        "  priority: 1000\n"
        "  weight: 1\n"
        "  replicas: {min: 1, max: 16}\n"
        "  queue: {maxWait: 500ms}\n"
        "  scaleUp:   {maxStep: 100%, per: 15s}\n"
        "  scaleDown: {stabilization: 5m, maxStep: 25%, per: 60s}\n"
        "  scaleToZero: {enabled: false, idleAfter: 15m}\n"
        "  prewarm:\n"
        '    - {from: "30 8 * * mon-fri", until: "0 19 * * mon-fri", '
        "timezone: Europe/Berlin, replicas: 3, lead: auto}\n"
    )
    spec = load([write(tmp_path, text)]).policies["test"].spec
    assert (spec.objective.ttft, spec.objective.itl, spec.objective.attainment) == (0.15, 0.05, 0.99)
    assert (spec.queue.max_wait, spec.scale_up.per, spec.scale_down.stabilization) == (0.5, 15.0, 300.0)
    assert (spec.scale_up.max_step.fraction, spec.scale_down.max_step.fraction) == (1.0, 0.25)
    assert (spec.prewarm[0].from_, spec.prewarm[0].lead) == ("30 8 * * mon-fri", None)


@pytest.mark.parametrize(
    ("spec", "line", "key", "problem", "value", "allowed"),
    [
        ("  objectiv: {ttft: 1s}", 6, "spec.objectiv", "did you mean objective? unknown key", "", "tolerance"),
        ("  replicas:\n    mim: 1", 7, "spec.replicas.mim", "did you mean min? unknown key", "1", "max, min"),
        ("  scale_up: {per: 15s}", 6, "spec.scale_up", "did you mean scaleUp? unknown key", "", "scaleUp"),
        ("  replicas:\n    max: 3\n    min: 4", 8, "spec.replicas.min", "above max", "4", "which is 3"),
        ("  replicas: {min: -1}", 6, "spec.replicas.min", "negative", "'-1'", "from 0 to 10,000"),
        ("  replicas: {max: many}", 6, "spec.replicas.max", "not a whole number", "'many'", "a whole number from 1"),
        ("  replicas: {max: true}", 6, "spec.replicas.max", "not a whole number", "'true'", "a whole number from 1"),
        ("  replicas: [1, 2]", 6, "spec.replicas", "of the wrong type", "", "a mapping with keys of max, min"),
        ("  replicas:", 6, "spec.replicas", "of the wrong type", "", "a mapping with keys of max, min"),
        ("  objective: {ttft: 150}", 6, "spec.objective.ttft", "a duration without a unit", "'150'", "as 150ms, 30s"),
        ("  objective: {ttft: 1:30}", 6, "spec.objective.ttft", "not a duration", "'1:30'", "as 150ms"),
        ("  objective: {ttft: 2h}", 6, "spec.objective.ttft", "too large", "'2h'", "from 1ms to 1h"),
        ("  objective: {attainment: 1.01}", 6, "spec.objective.attainment", "too large", "'1.01'", "0.01 to 1"),
        ("  objective: {attainment: -1}", 6, "spec.objective.attainment", "negative", "'-1'", "0.01 to 1"),
        ("  objective: {attainment: .nan}", 6, "spec.objective.attainment", "not a finite", "'.nan'", "0.01 to 1"),
        ("  scaleUp: {maxStep: 0}", 6, "spec.scaleUp.maxStep", "too small", "'0'", "a percentage from 1%"),
        (
            "  scaleToZero: {enabled: 1}",
            6,
            "spec.scaleToZero.enabled",
            "neither true nor false",
            "'1'",
            "true or false",
        ),
        ("  priority: 1:30", 6, "spec.priority", "not a whole number", "'1:30'", "a whole number"),
        ("  priority: 1.5", 6, "spec.priority", "not a whole number", "'1.5'", "a whole number"),
        ("  wakeUp: {query: ''}", 6, "spec.wakeUp.query", "empty", "''", "text of 1 to 4,096"),
        ("  wakeUp: {query: " + "x" * 5000 + "}", 6, "spec.wakeUp.query", "5,000 characters", "xxx...", "4,096"),
        ("  prewarm: soon", 6, "spec.prewarm", "of the wrong type", "'soon'", "a list, each a mapping"),
        ("  prewarm:\n  - soon", 7, "spec.prewarm[0]", "of the wrong type", "'soon'", "except, from, lead"),
        ("  prewarm:\n  - replicas: 1\n    from: 0 8 * * *", 7, "spec.prewarm[0].until", "missing", "", "a cron"),
        (
            "  priority: 1\n  priority: 2",
            7,
            "spec.priority",
            "given twice, first in line 6",
            "priority",
            "each key once",
        ),
    ],
)
def test_a_bad_value_is_reported_with_place_and_allowed_values(
    tmp_path: Path, spec: str, line: int, key: str, problem: str, value: str, allowed: str
):
    path = write(tmp_path, HEAD + spec + "\n")
    (finding,) = findings_of(path)
    assert (finding.file, finding.line, finding.key) == (str(path), line, key)
    assert problem in finding.problem
    assert value in finding.value
    assert allowed in finding.allowed
    assert f"{path}:{line}: error: {key}: " in str(finding)
    assert len(str(finding)) < 1000


@pytest.mark.parametrize(
    ("window", "key", "problem"),
    [
        ("from: nonsense, until: 0 9 * * *", "from", "a cron expression of 1 field"),
        ("from: 0 25 * * *, until: 0 9 * * *", "from", "bad hour"),
        ("from: 0 8 * * *, until: 0 9 30 2 *", "until", "bad day-of-month"),
        ("from: 0 8 * * *, until: 0 8 * * *", "until", "the same as from"),
        ("from: 0 8 * * *, until: 0 9 * * *, timezone: Mars/Olympus", "timezone", "unknown time zone"),
        ("from: 0 8 * * *, until: 0 9 * * *, lead: soon", "lead", "not a duration"),
    ],
)
def test_bad_cron_and_time_zones_are_reported_at_their_window(tmp_path: Path, window: str, key: str, problem: str):
    good = '  - {from: "0 8 * * *", until: "0 9 * * *", replicas: 2}\n'
    quoted = ", ".join(f'{part.split(": ")[0]}: "{part.split(": ")[1]}"' for part in window.split(", "))
    (finding,) = findings_of(write(tmp_path, f"{HEAD}  prewarm:\n{good}  - {{{quoted}, replicas: 2}}\n"))
    assert (finding.line, finding.key) == (8, f"spec.prewarm[1].{key}")
    assert problem in finding.problem
    assert finding.allowed


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("just text\n", 1, ""),
        ("- a\n- b\n", 1, ""),
        ("apiVersion: v1\nkind: Policy\nmetadata: {name: a}\n", 1, "apiVersion"),
        ("apiVersion: vllm-autoscaler.io/v1\nkind: Deployment\nmetadata: {name: a}\n", 2, "kind"),
        ("apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {name: A B}\n", 3, "metadata.name"),
        ("apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {}\n", 3, "metadata.name"),
        ("apiVersion: vllm-autoscaler.io/v1\nkind: Policy\n", 1, "metadata"),
        ("apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {name: a}\nstatus: {}\n", 4, "status"),
        ("# nothing\n", 0, ""),
    ],
)
def test_documents_that_are_no_policies_are_reported(tmp_path: Path, text: str, line: int, key: str):
    (finding,) = findings_of(write(tmp_path, text))
    assert (finding.line, finding.key) == (line, key)
    assert finding.allowed


def test_all_errors_are_reported_at_once(tmp_path: Path):
    write(tmp_path, HEAD + "  replicas: {min: -1}\n  objective: {ttft: 5}\n", "a.yaml")
    write(tmp_path, "a: [\n", "b.yaml")
    write(tmp_path, HEAD + "  tolerance: 5\n", "c.yaml")
    found = [(Path(finding.file).name, finding.line) for finding in findings_of(tmp_path)]
    assert found == [("a.yaml", 7), ("a.yaml", 6), ("b.yaml", 2), ("c.yaml", 6)]


def test_a_duplicate_name_is_reported_with_both_places(tmp_path: Path):
    first = write(tmp_path, BARE, "a.yaml")
    second = write(tmp_path, f"{BARE}---\n{BARE}".replace("test", "other", 1), "b.yaml")
    (finding,) = findings_of(tmp_path)
    assert (finding.file, finding.line) == (str(second), 9)
    assert f"{first}:1" in finding.problem


def test_a_file_may_hold_several_policies(tmp_path: Path):
    path = write(tmp_path, f"{BARE}---\n{BARE}".replace("test", "interactive", 1))
    assert sorted(load([path]).policies) == ["interactive", "test"]


def test_a_single_policy_is_the_default(tmp_path: Path):
    assert load([write(tmp_path, BARE)]).default == "test"


def test_a_default_policy_that_does_not_exist_is_an_error(tmp_path: Path):
    path = write(tmp_path, f"{BARE}---\n{BARE}".replace("test", "interactve", 1))
    (finding,) = findings_of(path)
    assert (finding.key, finding.value) == ("--default-policy", "'interactive'")
    assert (finding.problem, finding.allowed) == ("did you mean interactve? no such policy", "interactve, test")


def test_a_folder_ignores_other_files(tmp_path: Path):
    write(tmp_path, BARE)
    write(tmp_path, "resources: []\n", "kustomization.yaml")
    write(tmp_path, "half wri", ".p.yaml.swp.yaml")
    write(tmp_path, "# notes", "README.md")
    assert list(load([tmp_path]).policies) == ["test"]


def test_a_link_that_leads_out_of_its_folder_is_refused(tmp_path: Path):
    folder = tmp_path / "policies"
    folder.mkdir()
    write(folder, BARE)
    (folder / "q.yaml").symlink_to(write(tmp_path, BARE.replace("test", "outside")))
    (finding,) = findings_of(folder)
    assert (finding.file, finding.problem) == (str(folder / "q.yaml"), "a link out of its folder")


@pytest.mark.parametrize(("path", "problem"), [("missing.yaml", "No such file"), ("empty", "0 policy files")])
def test_a_path_without_policies_is_an_error(tmp_path: Path, path: str, problem: str):
    (tmp_path / "empty").mkdir()
    (finding,) = findings_of(tmp_path / path)
    assert finding.file == str(tmp_path / path)
    assert problem in finding.problem


def test_wakeup_queries_are_listed_by_policy(tmp_path: Path):
    path = write(tmp_path, f"{HEAD}  wakeUp: {{query: sum(x) > 0}}\n---\n{BARE}".replace("test", "interactive", 1))
    assert load([path]).wakeup_queries() == {"interactive": "sum(x) > 0"}


SHIPPED = sorted(path.read_text() for path in shipped().glob("*.yaml"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that each example of a property overwrites."""
    return tmp_path_factory.mktemp("mangled") / "p.yaml"


@pytest.mark.slow
@given(
    text=st.sampled_from(SHIPPED),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 12), st.text(alphabet=string.printable + "é\x00&*", max_size=8)),
        min_size=1,
        max_size=4,
    ),
)
def test_any_mangled_policy_file_loads_or_names_its_line(scratch: Path, text: str, cuts: list[tuple[float, int, str]]):
    for place, length, inserted in cuts:
        at = int(place * len(text))
        text = text[:at] + inserted + text[at + length :]
    check_loads_or_tells(scratch, text.encode("utf-8"))


@given(data=st.binary(max_size=300))
def test_any_bytes_load_or_name_file_and_line(scratch: Path, data: bytes):
    check_loads_or_tells(scratch, data)


@pytest.mark.parametrize("seed", range(20))
def test_any_swapped_lines_load_or_name_file_and_line(scratch: Path, seed: int):
    lines = SHIPPED[seed % len(SHIPPED)].splitlines(keepends=True)
    random.Random(seed).shuffle(lines)
    check_loads_or_tells(scratch, "".join(lines).encode())


def check_loads_or_tells(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        book = load([path], "interactive")
    except PolicyError as error:
        assert error.findings
        for finding in error.findings:
            assert finding.file == str(path)
            # Only what concerns the file as a whole has no line: nothing in it, or no default policy among several.
            assert finding.line >= 1 or finding.problem.endswith(("contains no document", "no such policy"))
            assert "\n" not in str(finding)
        return
    assert isinstance(book, PolicyBook)
    assert book.default in book.policies


@pytest.mark.slow
def test_an_installed_package_has_the_shipped_policies(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "autoscaler", source / "autoscaler", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "."]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], cwd=source, check=True, timeout=100, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    code = "import autoscaler.config.policy.parse as p; print(p.__file__); print(*sorted(p.load().policies))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(installed)},
        cwd=tmp_path,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    file, names = answer.stdout.splitlines()
    assert file.startswith(str(installed)), "the installed package was asked, not this checkout"
    assert names == "batch development interactive realtime"


def test_a_file_that_is_no_policy_is_not_repeated(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    with pytest.raises(PolicyError, match="not a policy") as refused:
        load([token])
    assert f"{token}:1" in str(refused.value)
    assert "s3cret" not in str(refused.value)
