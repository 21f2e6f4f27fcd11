"""Direct mode end to end: the command, a real API server with the shipped Role, recorded metrics and replicas."""

import asyncio
import math
import re
import signal
import stat
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config.policy.parse import shipped
from tests.adapters.kubernetes.world import RUNNING_STATUS, SCHEDULED, condition, shipped_roles
from tests.core.looped_recording import IDLE, loop_recording
from tests.harness.exposition import Answer
from tests.harness.fixtures import StartPromql
from tests.harness.kube_api import User, granted
from tests.harness.process import eventually
from tests.harness.promql import Target
from tests.integration.command import Daemon, run
from tests.integration.site import POLICY, Site

pytestmark = pytest.mark.integration

MERGE = "application/merge-patch+json"
SHIPPED_POLICIES = shipped()
IDLE_S = 5
READINGS_TO_REACT = 3  # one per second: the first has no queue of a second before, two show it beyond its limit
AGE = re.compile(r" \(metrics up to .* old\)")  # differs from tick to tick


async def ticks(daemon: Daemon, count: int) -> None:
    """Wait for this many more successful ticks."""

    async def number() -> float:
        return await daemon.metric("vllm_autoscaler_ticks_total", result="ok") or 0.0

    end = await number() + count

    async def done() -> bool:
        return await number() >= end

    await eventually(done, f"{count} more ticks", every_s=0.2)  # the page of metrics is long


async def changes(site: Site, daemon: Daemon) -> list[Mapping[str, Any]]:
    """Return the changes of `llama` that the daemon has recorded, oldest first."""
    found: list[Mapping[str, Any]] = (await daemon.workload(site.namespace, "llama"))["changes"]
    return found


def writes(site: Site, *users: User) -> list[tuple[str, int]]:
    """Return name and HTTP status of every scale request in the site's namespace."""
    return [
        (event.name, event.code)
        for user in users
        for event in site.api.audit(user)
        if event.permission.verb == "patch"
        and event.permission.resource.endswith("/scale")
        and event.namespace == site.namespace
    ]


async def annotate(site: Site, name: str, **annotations: str | None) -> None:
    path = await site.api.path("apps/v1", "Deployment", site.namespace, name)
    named = {f"vllm-autoscaler.io/{key}": value for key, value in annotations.items()}
    await site.api.request("PATCH", path, {"metadata": {"annotations": named}}, content_type=MERGE)


def said(texts: Iterable[str]) -> set[str]:
    return {AGE.sub("", text).strip() for text in texts}


async def test_queue_adds_replicas_and_one_sentence_explains_it(site: Site):
    await site.workload()
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as daemon:
        await ticks(daemon, 2)
        assert await site.has(1)
        site.load("saturated")
        await eventually(lambda: site.has(4), "four replicas")

        (event,) = await eventually(lambda: site.events("Scaled"), "an Event")
        (logged,) = daemon.log("scaled")
        (change,) = await changes(site, daemon)
        assert "4 running and 30 waiting" in change["reason"]
        assert event["note"] == change["reason"]
        assert logged["reason"] == change["reason"]
        assert (change["before"], change["after"], change["outcome"]) == (1, 4, "applied")
        assert await daemon.metric("vllm_autoscaler_desired_replicas", workload="llama") == 4

        await ticks(daemon, 1)

        async def explanation() -> tuple[set[str], list[str], list[str]]:
            """Return sentence, warnings, and the names of the lines below."""
            answer = (await daemon.workload(site.namespace, "llama"))["explanation"]
            names = [line["name"] for line in answer["forecast"]]
            return said([answer["sentence"]]), answer["warnings"], names

        async def explained() -> tuple[Any, ...]:
            """Return what the API and the command say, unless it changed meanwhile."""
            before = await explanation()
            shown = await run(site.directory, "explain", f"{site.namespace}/llama", "--url", daemon.url)
            assert shown.code == 0
            return (before, shown.out.splitlines()) if await explanation() == before else ()

        (sentence, warnings, names), shown = await eventually(explained, "an explanation")
        pages = [(await daemon.get(path))[1] for path in ("/readyz", "/metrics", "/api/v1/workloads")]
        assert user.token not in "".join([daemon.err, *pages])
        assert said(shown[:1]) == sentence
        assert [line for line in shown if line.startswith("Warning: ")] == [f"Warning: {each}." for each in warnings]
        assert [line.split()[0] for line in shown[1 + len(warnings) :]] == [*names, "gpus", "start"]
    assert writes(site, user) == [("llama", 200)]
    assert site.api.refused(user) == set()
    assert site.api.used(user) <= granted(*shipped_roles("direct"))


async def test_queue_scales_up_at_once_without_stated_capacity(site: Site):
    """The shipped policy and a real server's metrics, as of each second: the capacity is not known before the queue."""
    shipped = (SHIPPED_POLICIES / "interactive.yaml").read_text()
    site.policy.write_text(shipped.replace("name: interactive", "name: quick"))
    texts = list(loop_recording(IDLE, IDLE_S, 40, every_s=1, phase_s=0))
    begun_s = math.inf

    def text() -> str:
        return texts[int(min(max(time.monotonic() - begun_s, 0.0), len(texts) - 1))]

    site.metrics.serve("/metrics", text)
    await site.workload()
    async with site.daemon(await site.user(), "direct", "--scrape", period="1s") as daemon:
        await ticks(daemon, 1)
        begun_s = time.monotonic()
        change, *_ = await eventually(lambda: changes(site, daemon), "a change")  # by now there may be a second
        history = (await daemon.workload(site.namespace, "llama"))["history"]
        readings = [
            waiting for tick, waiting in zip(history["tick"], history["waiting"], strict=True) if tick <= change["tick"]
        ]
        assert 0 < sum((waiting or 0) > 0 for waiting in readings) <= READINGS_TO_REACT
        assert (change["before"], change["after"], change["outcome"]) == (1, 2, "applied")  # as far as one step goes
        assert change["reason"].startswith("Scales up from 1 to 2 replicas: ")

        async def noted() -> bool:
            return change["reason"] in {event["note"] for event in await site.events("Scaled")}

        await eventually(noted, "its Event")


async def test_count_falls_with_the_load_but_not_without_metrics(
    site: Site,
):
    await site.workload()
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as daemon:
        site.load("saturated")
        await eventually(lambda: site.has(4), "four replicas")
        site.load("drained")  # before the new pods come, or four of them would be saturated
        await site.serve_pods(count=4)
        await eventually(lambda: site.has(1), "one replica")

        async def doubts() -> bool:
            return (await daemon.workload(site.namespace, "llama"))["workload"]["trusted"] is False

        # The metrics go first: a tick that still reads them and knows of three replicas already would make it one.
        site.metrics.serve("/metrics", Answer("starting up", status=503))
        await eventually(doubts, "the metrics are gone")
        await site.scale("llama", 3, by=f"vllm-autoscaler/{site.namespace}/vllm-autoscaler")
        await ticks(daemon, 12)  # well beyond the 2 s after which less would be enough
        assert await site.has(3)
        assert await doubts()

        site.load("drained")
        await eventually(lambda: site.has(1), "one replica again")


async def test_learned_state_survives_and_no_count_drops(site: Site):
    """One replica would be enough. A busy machine takes longer than two seconds for what is between two starts."""
    site.policy.write_text(POLICY.replace("stabilization: 2s", "stabilization: 10m"))
    await site.workload(replicas=2)
    user = await site.user()
    state = site.directory / "state.npz"
    cold_start = "vllm_autoscaler_cold_start_seconds"
    starting = RUNNING_STATUS | {"podIP": "127.0.0.1"}
    await site.pod("llama", "llama-1-9", starting)
    async with site.daemon(user, "direct", "--scrape", "--state", state) as daemon:

        async def learned() -> float:
            found = await daemon.metric(cold_start, workload="llama") or 0.0
            return found if found > 0.5 else 0.0

        await asyncio.sleep(1.1)  # the times of the API server are whole seconds: a start within one takes no time
        ready = condition("Ready", "True", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        await site.status("llama-1-9", starting | {"conditions": [SCHEDULED, ready]})
        await eventually(learned, "a learned cold start")
        await ticks(daemon, 2)  # its phases tell the next start from the next tick on
        before = await learned()
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    await site.delete("Pod", "llama-1-9", "v1")  # nothing is left to learn it from
    async with site.daemon(user, "direct", "--scrape", "--state", state) as daemon:
        await ticks(daemon, 1)
        assert await daemon.metric(cold_start, workload="llama") == pytest.approx(before)
        (line,) = daemon.log("state restored")
        assert (line["workloads"], line["of"]) == (1, 1)
        assert await site.has(2)
    state.write_bytes(state.read_bytes()[:-30])
    async with site.daemon(user, "direct", "--scrape", "--state", state) as daemon:
        await ticks(daemon, 1)
        (line,) = daemon.log("state is not used")
        assert line["reason"].startswith(f"{state}: ")
        assert await daemon.metric(cold_start, workload="llama") == pytest.approx(0.1)  # as the policy says
        assert await site.has(2)


async def test_prometheus_gives_the_same_count_as_the_pods(site: Site, prometheus: StartPromql):
    await site.workload()
    labels = {"namespace": site.namespace, "pod": "llama-1-0"}
    server = await prometheus(Target(site.metrics.address, "/metrics", labels))
    await server.wait_for("vllm:num_requests_running")
    user = await site.user()
    async with site.daemon(user, "direct", "--prometheus", server.url) as daemon:
        await ticks(daemon, 2)
        assert await site.has(1)
        site.load("saturated")
        await eventually(lambda: site.has(4), "four replicas")
        await server.process.stop()
        await ticks(daemon, 12)
        assert await site.has(4)
        (source,) = (await daemon.readyz())["sources"]
        assert source["failed"] > 0
        assert source["problems"]


async def test_newly_annotated_workload_is_read_from_prometheus(site: Site, prometheus: StartPromql):
    """Its pods were seen in the cluster before those of the workloads that are scaled already."""
    await site.workload("old")
    await annotate(site, "old", policy=None)
    target = Target(site.metrics.address, "/metrics", {"namespace": site.namespace, "pod": "old-1-0"})
    server = await prometheus(target)
    await server.wait_for("vllm:num_requests_running")
    user = await site.user()
    async with site.daemon(user, "direct", "--prometheus", server.url, period="1s") as daemon:
        await site.workload("new")
        await eventually(lambda: _governed(daemon, 1), "the new one is scaled")
        await ticks(daemon, 1)
        await annotate(site, "old", policy="quick")
        site.load("saturated")
        await eventually(lambda: site.has(4, "old"), "four replicas of the old one")


async def _governed(daemon: Daemon, count: int) -> bool:
    return (await daemon.json("/api/v1/workloads"))["total"] == count


async def test_gateway_wakes_a_workload_without_pods(site: Site, prometheus: StartPromql):
    site.policy.write_text(POLICY + "  scaleToZero: {enabled: true, idleAfter: 1h}\n")
    await site.workload(replicas=0)
    server = await prometheus()
    queue = 'llm_d_epp_flow_control_queue_size{inference_pool="llama"} '
    gateway = site.metrics.serve("/gateway", f"{queue}0\n")
    user = await site.user()
    async with site.daemon(user, "direct", "--prometheus", server.url, "--gateway", gateway) as daemon:
        await ticks(daemon, 3)
        assert await site.has(0)
        site.metrics.serve("/gateway", f"{queue}1\n")
        await eventually(lambda: site.has(1), "one replica")
        (change,) = await eventually(lambda: changes(site, daemon), "the change")  # recorded after the count is set
        assert (change["before"], change["after"]) == (0, 1)
        assert {source["source"] for source in (await daemon.readyz())["sources"]} == {"gateway", "prometheus"}


async def test_paused_workload_is_not_scaled_until_resumed(site: Site):
    await site.workload(paused="true")
    site.load("saturated")
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as daemon:

        async def seen() -> dict[str, Any]:
            answer = (await daemon.workload(site.namespace, "llama"))["workload"]
            return answer if answer["waiting"] == 30 else {}

        await ticks(daemon, 4)
        answer = await eventually(seen, "the queue is seen")
        assert (answer["paused"], answer["wanted"]) == (True, 1)
        assert writes(site, user) == []
        await annotate(site, "llama", paused=None)
        await eventually(lambda: site.has(4), "four replicas")


async def test_hpa_of_another_owner_is_reported_and_respected(site: Site):
    await site.workload()
    await site.hpa("by-cpu", "llama")
    site.load("saturated")
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as daemon:
        await ticks(daemon, 4)
        seen = (await daemon.workload(site.namespace, "llama"))["workload"]
        assert seen["other_owner"] == "HorizontalPodAutoscaler/by-cpu"
        assert await daemon.metric("vllm_autoscaler_other_owner", owner="HorizontalPodAutoscaler/by-cpu") == 1
        (event,) = await eventually(lambda: site.events("OtherOwnerDetected"), "an Event")
        assert "by-cpu" in event["note"]
        assert [line["other_owner"] for line in daemon.log("another owner sets the replica count; not scaling")] == [
            "HorizontalPodAutoscaler/by-cpu"
        ]
        assert writes(site, user) == []
        await site.delete("HorizontalPodAutoscaler", "by-cpu", "autoscaling/v2")
        await eventually(lambda: site.has(4), "four replicas")


async def test_manual_scale_to_zero_survives_a_restart(site: Site):
    await site.workload()
    site.load("drained")
    user = await site.user()
    arguments = ("direct", "--scrape", "--state", site.directory / "state.npz")

    async def held() -> bool:
        seen = (await daemon.workload(site.namespace, "llama"))["workload"]
        return bool(seen["other_owner"] == "a manual change by an unknown client")

    async with site.daemon(user, *arguments) as daemon:
        await ticks(daemon, 2)
        await site.scale("llama", 0, by="kubectl")
        await eventually(held, "the manual change is respected")
        await ticks(daemon, 3)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    async with site.daemon(user, *arguments) as daemon:
        assert await held()
        await ticks(daemon, 3)
    assert await site.has(0)
    assert writes(site, user) == []


async def test_unscalable_workloads_do_not_affect_others(site: Site):
    await site.workload()
    await site.workload("orphan", policy="quick", min_replicas="9", max_replicas="many")
    await site.workload("stray", policy="no-such-policy")
    await site.workload("doomed")
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape", period="1s") as daemon:
        site.load("saturated")
        await eventually(lambda: site.has(4), "four replicas")
        await site.delete("Deployment", "doomed")
        await ticks(daemon, 2)
        ready = await daemon.readyz()
        (problem,) = ready["workload_problems"].values()
        assert problem.startswith("max-replicas: ")
        assert "found 'many'" in problem
        stray = await daemon.workload(site.namespace, "stray")
        assert "Keeps 1 replica: policy 'no-such-policy' does not exist" in stray["explanation"]["sentence"]
        assert await site.has(1, "stray")
        assert await daemon.workload(site.namespace, "doomed") == {}
        assert ready["ready"]
        assert ready["failed_ticks_in_a_row"] == 0


class Mounted:
    """A directory like a mounted ConfigMap: files are links through `..data`, which is swapped as a whole."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self._version = 0
        folder.mkdir()
        (folder / "quick.yaml").symlink_to("..data/quick.yaml")
        self.write(text)

    def write(self, text: str) -> None:
        self._version += 1
        version = self.folder / f"..version_{self._version}"
        version.mkdir()
        (version / "quick.yaml").write_text(text)
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.folder / "..data")


async def test_policies_reload_on_a_swapped_link_and_survive_errors(site: Site):
    mounted = Mounted(site.directory / "policies", POLICY.replace("max: 8", "max: 2"))
    site.policy = mounted.folder
    await site.workload()
    site.load("saturated")
    user = await site.user()
    async with site.daemon(user, "direct", "--scrape") as daemon:

        async def problem() -> str:
            return str((await daemon.readyz())["policy_problem"])

        async def well() -> bool:
            return not await problem()

        await eventually(lambda: site.has(2), "two replicas")
        mounted.write(POLICY.replace("max: 8", "max: 3"))
        await eventually(lambda: site.has(3), "three replicas")

        mounted.write(POLICY.replace("max: 8", "max: 0"))
        problem_text = await eventually(problem, "a problem")
        assert "quick.yaml:8" in problem_text
        assert "replicas.max" in problem_text
        assert await daemon.metric("vllm_autoscaler_policy_problems") == 1
        (line,) = daemon.log("policies are invalid; the previous ones stay in force")
        assert line["problem"] == problem_text
        await ticks(daemon, 3)
        assert await site.has(3)
        assert (await daemon.readyz())["ready"] is True

        mounted.write(POLICY)
        await eventually(lambda: site.has(4), "four replicas")
        assert await well()
        assert await daemon.metric("vllm_autoscaler_policy_problems") == 0
