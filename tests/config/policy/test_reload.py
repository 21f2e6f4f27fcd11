"""Policies that follow their files, with the links that kubelet swaps for a mounted ConfigMap."""

import itertools
import shutil
import threading
import time
from pathlib import Path

import pytest

from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.compile import compile_specs
from autoscaler.config.policy.reload import POLL_S, PolicyFiles, Reload
from autoscaler.core.model.fleet import Workload, WorkloadRef

_numbers = itertools.count()


def policy(name: str = "interactive", most: int = 4) -> str:
    head = f"apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {{name: {name}}}\n"
    return f"{head}spec: {{replicas: {{max: {most}}}}}\n"


class HandClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s


class ConfigMapMount:
    """A volume as kubelet's atomic writer keeps it: files link into `..data`, which links to a folder with a time."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.write(**files)

    def write(self, **files: str) -> None:
        """Swap all content at once."""
        data = self.folder / "..data"
        before = data.resolve() if data.is_symlink() else None
        fresh = self.folder / f"..2026_01_15_12_00_00.{next(_numbers)}"
        fresh.mkdir()
        for name, text in files.items():
            (fresh / f"{name}.yaml").write_text(text)
        swap = self.folder / "..data_tmp"
        swap.symlink_to(fresh.name)
        swap.rename(data)
        for name in files:
            link = self.folder / f"{name}.yaml"
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}.yaml")
        for link in self.folder.glob("[!.]*.yaml"):
            if link.stem not in files:
                link.unlink()
        if before is not None:
            shutil.rmtree(before)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def mount(tmp_path: Path) -> ConfigMapMount:
    return ConfigMapMount(tmp_path / "policies", interactive=policy())


def poll(files: PolicyFiles, clock: HandClock) -> Reload:
    clock.time_s += POLL_S
    return files.poll()


def most(files: PolicyFiles, name: str = "interactive") -> int:
    return files.book.policies[name].spec.replicas.max


def test_a_swapped_config_map_is_in_force_after_the_next_poll(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    assert most(files) == 4
    mount.write(interactive=policy(most=9))
    assert poll(files, clock) is Reload.LOADED
    assert most(files) == 9
    assert poll(files, clock) is Reload.UNCHANGED


def test_while_nothing_changes_the_book_stays_the_same_object(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    book = files.book
    assert [poll(files, clock) for _ in range(3)] == [Reload.UNCHANGED] * 3
    assert files.book is book


def test_a_swap_that_changes_no_policy_is_no_reload(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    book = files.book
    mount.write(interactive=policy())
    (mount.folder / "notes.txt").write_text("nothing to do with policies")
    assert poll(files, clock) is Reload.UNCHANGED
    assert files.book is book


def test_policies_come_and_go_with_their_files(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    mount.write(interactive=policy(), extra=policy("extra"))
    assert poll(files, clock) is Reload.LOADED
    assert sorted(files.book.policies) == ["extra", "interactive"]
    mount.write(interactive=policy())
    assert poll(files, clock) is Reload.LOADED
    assert sorted(files.book.policies) == ["interactive"]


def test_a_broken_file_keeps_the_present_policies(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    book = files.book
    mount.write(interactive=policy(most=9), extra=policy("extra", most=-1))
    assert poll(files, clock) is Reload.BROKEN
    assert files.book is book, "not even the good file is taken over"
    assert "extra.yaml:4: error: spec.replicas.max: negative, found '-1'" in files.problem
    assert poll(files, clock) is Reload.UNCHANGED, "it is said once"
    assert files.problem, "and stays visible"
    mount.write(interactive=policy(most=9), extra=policy("extra"))
    assert poll(files, clock) is Reload.LOADED
    assert files.problem == ""
    assert (most(files), most(files, "extra")) == (9, 4)


def test_restoring_the_valid_files_ends_the_problem(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    mount.write(interactive="spec: [\n")
    assert poll(files, clock) is Reload.BROKEN
    mount.write(interactive=policy())
    assert poll(files, clock) is Reload.LOADED
    assert (files.problem, most(files)) == ("", 4)


def test_another_mistake_is_reported_again(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    mount.write(interactive="spec: [\n")
    assert poll(files, clock) is Reload.BROKEN
    mount.write(interactive="spec: {\n")
    assert poll(files, clock) is Reload.BROKEN


def test_files_that_vanish_leave_the_policies_in_force(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    shutil.rmtree(mount.folder)
    assert poll(files, clock) is Reload.BROKEN
    assert "No such file" in files.problem
    assert most(files) == 4


def test_a_default_policy_that_vanishes_is_a_broken_change(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    mount.write(a=policy("a"), b=policy("b"))
    assert poll(files, clock) is Reload.BROKEN
    assert "--default-policy: no such policy" in files.problem
    assert list(files.book.policies) == ["interactive"]


def test_a_plain_file_that_is_replaced_is_noticed_as_well(tmp_path: Path, clock: HandClock):
    path = tmp_path / "p.yaml"
    path.write_text(policy())
    files = PolicyFiles([path], clock)
    fresh = tmp_path / "fresh"
    fresh.write_text(policy(most=5))  # as long as the one before
    fresh.replace(path)
    assert poll(files, clock) is Reload.LOADED
    assert most(files) == 5


def test_polls_come_no_more_often_than_once_a_second(mount: ConfigMapMount, clock: HandClock):
    files = PolicyFiles([mount.folder], clock)
    mount.write(interactive=policy(most=9))
    clock.time_s += POLL_S / 2
    assert files.poll() is Reload.UNCHANGED
    assert most(files) == 4
    clock.time_s += POLL_S / 2
    assert files.poll() is Reload.LOADED


@pytest.mark.slow
def test_swaps_while_files_are_read_never_mix_old_and_new(tmp_path: Path, clock: HandClock):
    """All files of one state have the same maximum; another thread swaps states all the time."""
    names = [f"p{number}" for number in range(24)]
    mount = ConfigMapMount(tmp_path / "policies", **{name: policy(name, 1) for name in names})
    files = PolicyFiles([mount.folder], clock, "p0")
    stop = threading.Event()

    def swap() -> None:
        for state in itertools.count(2):
            if stop.is_set():
                return
            mount.write(**{name: policy(name, state) for name in names})
            stop.wait(0.004)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        found = []
        deadline_s = time.monotonic() + 2
        while len(found) < 12 and time.monotonic() < deadline_s:
            if poll(files, clock) is not Reload.UNCHANGED:
                assert files.problem == ""
                found.append({most(files, name) for name in names})
    finally:
        stop.set()
        swapping.join()
    poll(files, clock)
    assert files.problem == ""
    found.append({most(files, name) for name in names})
    assert all(len(state) == 1 for state in found), found


def test_bad_policies_stop_the_start(tmp_path: Path, clock: HandClock):
    mount = ConfigMapMount(tmp_path / "policies", interactive=policy(most=0))
    with pytest.raises(PolicyError, match=r"interactive\.yaml:4: error: spec\.replicas\.max: too small"):
        PolicyFiles([mount.folder], clock)


def test_without_paths_the_shipped_policies_are_followed(clock: HandClock):
    files = PolicyFiles((), clock)
    assert sorted(files.book.policies) == ["batch", "development", "interactive", "realtime"]
    assert poll(files, clock) is Reload.UNCHANGED


def test_limits_of_namespaces_are_reloaded_as_policies_are(tmp_path: Path, clock: HandClock):
    def limits(priority: object) -> str:
        head = "apiVersion: vllm-autoscaler.io/v1\nkind: NamespaceLimits\nmetadata: {name: tenants}\n"
        return f"{head}spec: {{namespaces: [{{name: team-a, maxPriority: {priority}}}]}}\n"

    def priority() -> float:
        asked = Workload(WorkloadRef("team-a", "chat"), overrides=(("priority", "5000"),))
        return float(compile_specs((asked,), files.book).spec.priority[0])

    mount = ConfigMapMount(tmp_path / "policies", interactive=policy(), limits=limits(400))
    files = PolicyFiles([mount.folder], clock)
    assert priority() == 400
    mount.write(interactive=policy(), limits=limits(450))
    assert (poll(files, clock), priority()) == (Reload.LOADED, 450)
    mount.write(interactive=policy(), limits=limits("high"))
    assert (poll(files, clock), priority()) == (Reload.BROKEN, 450)
    assert "maxPriority: not a whole number, found 'high'" in files.problem
    mount.write(interactive=policy())
    assert (poll(files, clock), priority()) == (Reload.LOADED, 5000)
