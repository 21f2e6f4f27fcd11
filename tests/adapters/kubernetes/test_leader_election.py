"""Leader election against a real API server: at most one leads, whatever is killed or frozen."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.leader_election import Elector, micro_time
from autoscaler.config.settings import LeaseSettings
from tests.adapters.kubernetes.conftest import Connect
from tests.adapters.kubernetes.world import running
from tests.harness.kube_api import KubeApi, User
from tests.harness.process import eventually

integration = pytest.mark.integration
ROOT = Path(__file__).parents[3]
LEASES = "coordination.k8s.io/v1"


def quick(namespace: str, **changes: float) -> LeaseSettings:
    """Settings in the proportions of client-go's, some seven times faster."""
    times = {"duration_s": 2.0, "renew_deadline_s": 1.4, "retry_s": 0.2} | changes
    return LeaseSettings(namespace=namespace, **times)


class Watcher:
    """Looks every few milliseconds who leads, and keeps the largest number that ever did at once."""

    def __init__(self, *electors: Elector) -> None:
        self.electors = list(electors)
        self.most = 0
        self.without_leader_s = 0.0

    async def run(self) -> None:
        before = time.monotonic()
        while True:
            leaders = sum(elector.leading for elector in self.electors)
            self.most = max(self.most, leaders)
            now = time.monotonic()
            self.without_leader_s += (now - before) * (leaders == 0)
            before = now
            await asyncio.sleep(0.002)


async def one_leads(electors: list[Elector], timeout_s: float = 10) -> Elector:
    async def leader() -> Elector | None:
        return next((elector for elector in electors if elector.leading), None)

    found = await eventually(leader, "one leads", timeout_s, every_s=0.005)
    assert found is not None
    return found


@integration
async def test_one_of_three_leads_and_gives_the_lease_back_when_it_ends(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str
):
    electors = [Elector(kube, quick(namespace), clock) for _ in range(3)]
    watcher = Watcher(*electors)
    tasks = {elector.identity: asyncio.create_task(elector.run()) for elector in electors}
    async with running(watcher):
        first = await one_leads(electors)
        assert first.transitions == 0
        await asyncio.sleep(0.5)
        assert {elector.holder for elector in electors} == {first.identity}
        assert all(elector.led_elsewhere != (elector is first) for elector in electors)
        began = time.monotonic()
        tasks[first.identity].cancel()
        await asyncio.sleep(0)
        assert not first.leading
        second = await one_leads([elector for elector in electors if elector is not first])
        handover_s = time.monotonic() - began
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert handover_s < 1.0  # not the 2 s that an abandoned lease lasts
    assert second.transitions == 1
    assert watcher.most == 1
    lease = (await kube_api.get(LEASES, "Lease", namespace, "vllm-autoscaler"))["spec"]
    assert lease.get("holderIdentity", "") == ""


def assert_never_two(acts: list[list[str]]) -> list[str]:
    """Check that whoever acted did so alone, and return the actors in order. A line is: time, identity, transitions."""
    lines = sorted((float(at), identity, int(transitions)) for at, identity, transitions in acts)
    actors: list[str] = []
    highest = -1
    for _, identity, transitions in lines:
        assert transitions >= highest, f"{identity} acted in term {transitions} after somebody had in {highest}"
        highest = transitions
        if not actors or actors[-1] != identity:
            actors.append(identity)
    assert len(set(actors)) == len(actors), f"they took turns without a change of leader: {actors}"
    return actors


@integration
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_when_the_leading_process_dies_or_freezes_another_acts_after_the_lease_and_never_both(
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

        (first,) = await eventually(acting, "one acts", 20)
        await asyncio.sleep(0.5)
        children[first].send_signal(how)
        struck = time.monotonic()
        await eventually(lambda: acting(first), "another acts", 20)
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
    assert len(actors) == 2
    took_over = min(float(at) for at, identity, _ in lines if identity == actors[1])
    record_property("failover_s", took_over - struck)
    print(f"failover after {how.name}: {took_over - struck:.2f} s with a lease of {settings.duration_s:g} s")
    # At most the lease, a look that came just before the last renewal, and what a busy machine takes.
    assert took_over - struck < settings.duration_s + 2 * settings.retry_s * 1.2 + 1.5


@integration
@pytest.mark.parametrize("crash", [True, False])
async def test_through_an_outage_of_the_api_server_the_leader_stops_in_time_and_one_leads_afterwards(
    kube_api: KubeApi, connect: Connect, daemon: User, clock: SystemClock, namespace: str, crash: bool
):
    settings = quick(namespace)
    electors = [Elector(await connect(daemon), settings, clock) for _ in range(3)]
    watcher = Watcher(*electors)
    async with running(watcher, *electors):
        leader = await one_leads(electors)

        async def leader_stops() -> bool:
            return not leader.leading

        began = time.monotonic()
        async with kube_api.outage(crash=True) if crash else kube_api.frozen():
            await eventually(leader_stops, "the leader stops", every_s=0.01)
            assert time.monotonic() - began <= settings.renew_deadline_s + 0.3
            await asyncio.sleep(max(0.0, settings.duration_s + 0.5 - (time.monotonic() - began)))
            assert not any(elector.leading or elector.led_elsewhere for elector in electors)
        await one_leads(electors)
        await asyncio.sleep(1.0)
    assert watcher.most == 1


@integration
async def test_a_short_hiccup_of_the_api_server_changes_no_leader(
    kube_api: KubeApi, connect: Connect, daemon: User, clock: SystemClock, namespace: str
):
    electors = [Elector(await connect(daemon), quick(namespace), clock) for _ in range(2)]
    watcher = Watcher(*electors)
    async with running(watcher, *electors):
        leader = await one_leads(electors)
        await asyncio.sleep(0.3)
        async with kube_api.frozen():
            await asyncio.sleep(0.6)
        await asyncio.sleep(0.5)
        assert leader.leading
        assert leader.transitions == 0
    assert watcher.most == 1


@integration
async def test_a_lease_deleted_under_its_holder_is_not_taken_by_another_at_once(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str
):
    electors = [Elector(kube, quick(namespace), clock) for _ in range(3)]
    watcher = Watcher(*electors)
    async with running(watcher, *electors):
        leader = await one_leads(electors)
        await asyncio.sleep(0.5)
        await kube_api.delete(LEASES, "Lease", namespace, "vllm-autoscaler")
        await asyncio.sleep(1.0)
        assert leader.leading
    assert watcher.most == 1


@integration
async def test_the_times_in_a_foreign_lease_are_not_believed_only_that_it_does_not_change(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str
):
    spec = {
        "holderIdentity": "somebody-whose-clock-is-wrong",
        "leaseDurationSeconds": 1,
        "renewTime": "2001-01-01T00:00:00.000000Z",
        "leaseTransitions": 7,
    }
    lease = {"apiVersion": LEASES, "kind": "Lease", "metadata": {"name": "vllm-autoscaler"}, "spec": spec}
    await kube_api.apply(lease, namespace=namespace)
    elector = Elector(kube, quick(namespace), clock)
    began = time.monotonic()
    async with running(elector):
        await one_leads([elector])
        assert time.monotonic() - began >= 2.0
        assert elector.transitions == 8
        written = (await kube_api.get(LEASES, "Lease", namespace, "vllm-autoscaler"))["spec"]
    assert written["holderIdentity"] == elector.identity
    assert len(written["renewTime"]) == len("2026-01-02T03:04:05.000000Z")


@integration
async def test_lease_is_given_back_when_its_version_is_newer_than_was_seen(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, namespace: str
):
    """As after a renewal that was sent, cut short by the end of the process, and applied all the same."""
    elector = Elector(kube, quick(namespace, duration_s=60, renew_deadline_s=40, retry_s=30), clock)
    async with running(elector):
        await one_leads([elector])
        lease = {"apiVersion": LEASES, "kind": "Lease", "metadata": {"name": "vllm-autoscaler", "labels": {"a": "b"}}}
        await kube_api.apply(lease, namespace=namespace)
    written = (await kube_api.get(LEASES, "Lease", namespace, "vllm-autoscaler"))["spec"]
    assert written.get("holderIdentity", "") == ""


@integration
async def test_coming_to_lead_wakes_the_loop(kube: Kube, clock: SystemClock, namespace: str):
    wakeup = asyncio.Event()
    elector = Elector(kube, quick(namespace), clock, wakeup)
    async with running(elector):
        async with asyncio.timeout(5):
            await wakeup.wait()
        assert elector.leading


@integration
async def test_without_the_right_to_the_lease_nobody_leads(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, namespace: str
):
    nobody = await kube_api.service_account(namespace, "nobody")
    elector = Elector(await connect(nobody), quick(namespace), clock)
    async with running(elector):
        await asyncio.sleep(1.0)
        assert not elector.leading


def test_two_processes_with_one_configured_name_are_told_apart():
    settings = LeaseSettings(identity="pod-0")
    electors = [Elector(None, settings, SystemClock()) for _ in range(2)]  # type: ignore[arg-type]
    assert electors[0].identity.startswith("pod-0_")
    assert electors[0].identity != electors[1].identity


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [(0.0, "1970-01-01T00:00:00.000000Z"), (1767323045.5, "2026-01-02T03:04:05.500000Z")],
)
def test_micro_time_has_six_digits_always(wall_s: float, text: str):
    assert micro_time(wall_s) == text
