"""Leader election against a real API server: at most one leads while processes are killed or frozen."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.text import micro_time
from autoscaler.adapters.kubernetes.leader_election import Elector
from autoscaler.config.settings import LeaseSettings
from tests.adapters.kubernetes.conftest import Connect
from tests.adapters.kubernetes.world import running
from tests.harness.kube_api import KubeApi, User
from tests.harness.process import PATIENCE_S, eventually

integration = pytest.mark.integration
ROOT = Path(__file__).parents[3]
LEASES = "coordination.k8s.io/v1"


def quick(namespace: str, **changes: float) -> LeaseSettings:
    """The proportions of client-go's defaults, about seven times faster."""
    times = {"duration_s": 2.0, "renew_deadline_s": 1.4, "retry_s": 0.2} | changes
    return LeaseSettings(namespace=namespace, **times)


def lasting(namespace: str) -> LeaseSettings:
    """A lease that outlasts the test, however long a busy machine stands still."""
    return quick(namespace, duration_s=10 * PATIENCE_S, renew_deadline_s=5 * PATIENCE_S)


class Watcher:
    """Counts the leaders every few milliseconds and at each question, and keeps the largest number."""

    def __init__(self, *electors: Elector) -> None:
        self.electors = electors
        self.most = 0

    def leaders(self) -> list[Elector]:
        found = [elector for elector in self.electors if elector.leading]
        self.most = max(self.most, len(found))
        return found

    async def one_leads(self, other_than: Elector | None = None) -> Elector:
        async def leader() -> Elector | None:
            return next((elector for elector in self.leaders() if elector is not other_than), None)

        found = await eventually(leader, "one leads", every_s=0.005)
        assert found is not None
        return found

    async def run(self) -> None:
        while True:
            self.leaders()
            await asyncio.sleep(0.002)


@integration
async def test_one_of_three_leads_and_releases_the_lease(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str
):
    electors = [Elector(kube, lasting(namespace), clock) for _ in range(3)]
    watcher = Watcher(*electors)
    tasks = {elector.identity: asyncio.create_task(elector.run()) for elector in electors}
    async with running(watcher):
        first = await watcher.one_leads()
        assert first.transitions == 0

        async def all_know() -> bool:
            return {elector.holder for elector in electors} == {first.identity}

        await eventually(all_know, "all know who leads")
        assert all(elector.has_other_leader != (elector is first) for elector in electors)
        tasks[first.identity].cancel()
        await asyncio.sleep(0)
        assert not first.leading
        second = await watcher.one_leads(other_than=first)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert second.transitions == 1
    assert watcher.most == 1
    lease = (await kube_api.get(LEASES, "Lease", namespace, "vllm-autoscaler"))["spec"]
    assert lease.get("holderIdentity", "") == ""


def assert_never_two(acts: list[list[str]]) -> list[str]:
    """Check that two processes never acted at once; return them by term. A line is: time, identity, transitions.

    On a busy machine a lease of two seconds may expire, so there may be more terms than a test causes.
    """
    lines = sorted((float(at), identity, int(transitions)) for at, identity, transitions in acts)
    actors: dict[int, str] = {}
    highest = -1
    for _, identity, transitions in lines:
        assert transitions >= highest, (
            f"{identity} acted in term {transitions} after another process acted in {highest}"
        )
        highest = transitions
        assert actors.setdefault(transitions, identity) == identity, f"two processes acted in term {transitions}"
    return list(actors.values())


@integration
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_another_process_acts_when_the_leader_dies_or_freezes(
    kube_api: KubeApi, daemon: User, namespace: str, tmp_path: Path, how: signal.Signals, record_property
):
    settings = quick(namespace)
    config = tmp_path / "settings.json"
    config.write_text(settings.model_dump_json())
    environment = os.environ | {"KUBECONFIG": str(kube_api.kubeconfig(daemon)), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.adapters.kubernetes.elector_process", str(config)]
    logs = [tmp_path / f"{index}.log" for index in range(3)]
    children = []
    try:
        for log in logs:
            with log.open("w") as file:
                children.append(await asyncio.create_subprocess_exec(*command, env=environment, cwd=ROOT, stdout=file))

        def acts(log: Path) -> list[list[str]]:
            return [line.split() for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]

        async def acting(but: int = -1) -> list[int]:
            return [index for index, log in enumerate(logs) if index != but and acts(log)]

        first, *_ = await eventually(acting, "one acts")
        await asyncio.sleep(0.5)
        children[first].send_signal(how)
        signalled_s = time.monotonic()
        before = {index: len(acts(log)) for index, log in enumerate(logs)}

        async def others_act() -> bool:
            return any(len(acts(log)) > before[index] for index, log in enumerate(logs) if index != first)

        await eventually(others_act, "another acts")
        if how is signal.SIGSTOP:
            await asyncio.sleep(0.3)
            children[first].send_signal(signal.SIGCONT)
            await asyncio.sleep(0.5)
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()
    lines = [line for log in logs for line in acts(log)]
    actors = assert_never_two(lines)
    assert len(set(actors)) >= 2
    others = [line for index, log in enumerate(logs) if index != first for line in acts(log)]
    took_over = min((float(at) for at, *_ in others if float(at) > signalled_s), default=signalled_s)
    record_property("failover_s", took_over - signalled_s)
    print(f"failover after {how.name}: {took_over - signalled_s:.2f} s with a lease of {settings.duration_s:g} s")


@integration
@pytest.mark.parametrize("crash", [True, False])
async def test_leader_stops_in_time_during_an_outage(
    kube_api: KubeApi, connect: Connect, daemon: User, clock: SystemClock, namespace: str, crash: bool
):
    settings = quick(namespace)
    electors = [Elector(await connect(daemon), settings, clock) for _ in range(3)]
    watcher = Watcher(*electors)
    async with running(watcher, *electors):
        leader = await watcher.one_leads()

        async def leader_stops() -> bool:
            return not leader.leading

        async def nobody_leads() -> bool:
            return not any(elector.leading or elector.has_other_leader for elector in electors)

        async with kube_api.outage(crash=True) if crash else kube_api.frozen():
            await eventually(leader_stops, "the leader stops", every_s=0.01)
            await eventually(nobody_leads, "the lease expires")
        await watcher.one_leads()
        await asyncio.sleep(1.0)
    assert watcher.most == 1


@integration
async def test_leader_stays_after_a_short_outage(
    kube_api: KubeApi, connect: Connect, daemon: User, clock: SystemClock, namespace: str
):
    electors = [Elector(await connect(daemon), lasting(namespace), clock) for _ in range(2)]
    watcher = Watcher(*electors)
    async with running(watcher, *electors):
        leader = await watcher.one_leads()
        await asyncio.sleep(0.3)
        async with kube_api.frozen():
            await asyncio.sleep(0.6)
        await asyncio.sleep(0.5)
        assert leader.leading
        assert leader.transitions == 0
    assert watcher.most == 1


@integration
async def test_deleted_lease_is_not_acquired_at_once(kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str):
    electors = [Elector(kube, lasting(namespace), clock) for _ in range(3)]
    watcher = Watcher(*electors)
    async with running(watcher, *electors):
        leader = await watcher.one_leads()
        await asyncio.sleep(0.5)
        await kube_api.delete(LEASES, "Lease", namespace, "vllm-autoscaler")
        await asyncio.sleep(1.0)
        assert leader.leading
    assert watcher.most == 1


@integration
async def test_times_in_a_foreign_lease_are_ignored(kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str):
    spec = {
        "holderIdentity": "process-with-a-wrong-clock",
        "leaseDurationSeconds": 1,
        "renewTime": "2001-01-01T00:00:00.000000Z",
        "leaseTransitions": 7,
    }
    lease = {"apiVersion": LEASES, "kind": "Lease", "metadata": {"name": "vllm-autoscaler"}, "spec": spec}
    await kube_api.apply(lease, namespace=namespace)
    elector = Elector(kube, quick(namespace), clock)
    began = time.monotonic()
    async with running(elector):
        await Watcher(elector).one_leads()
        assert time.monotonic() - began >= 2.0
        assert elector.transitions == 8
        written = (await kube_api.get(LEASES, "Lease", namespace, "vllm-autoscaler"))["spec"]
    assert written["holderIdentity"] == elector.identity
    assert len(written["renewTime"]) == len("2026-01-02T03:04:05.000000Z")


@integration
async def test_lease_is_released_when_its_version_has_changed(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str
):
    """As after a renewal that was cancelled at the end of the process, but applied."""
    elector = Elector(kube, quick(namespace, duration_s=60, renew_deadline_s=40, retry_s=30), clock)
    async with running(elector):
        await Watcher(elector).one_leads()
        lease = {"apiVersion": LEASES, "kind": "Lease", "metadata": {"name": "vllm-autoscaler", "labels": {"a": "b"}}}
        await kube_api.apply(lease, namespace=namespace)
    written = (await kube_api.get(LEASES, "Lease", namespace, "vllm-autoscaler"))["spec"]
    assert written.get("holderIdentity", "") == ""


@integration
async def test_loop_is_woken_when_this_process_begins_to_lead(kube: Kube, clock: SystemClock, namespace: str):
    wakeup = asyncio.Event()
    elector = Elector(kube, lasting(namespace), clock, wakeup)
    async with running(elector):
        async with asyncio.timeout(PATIENCE_S):
            await wakeup.wait()
        assert elector.leading


@integration
async def test_no_process_leads_without_permission_for_the_lease(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, namespace: str
):
    unprivileged = await kube_api.service_account(namespace, "unprivileged")
    elector = Elector(await connect(unprivileged), quick(namespace), clock)
    async with running(elector):
        await asyncio.sleep(1.0)
        assert not elector.leading


def test_identities_differ_when_the_configured_name_is_equal():
    settings = LeaseSettings(identity="pod-0")
    electors = [Elector(None, settings, SystemClock()) for _ in range(2)]  # type: ignore[arg-type]
    assert electors[0].identity.startswith("pod-0_")
    assert electors[0].identity != electors[1].identity


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [(0.0, "1970-01-01T00:00:00.000000Z"), (1767323045.5, "2026-01-02T03:04:05.500000Z")],
)
def test_micro_time_always_has_six_digits(wall_s: float, text: str):
    assert micro_time(wall_s) == text
