"""A small cluster behind the real API server, and the whole daemon beside it in the test's own process.

The API server stores, admits and refuses. `Cluster.step` does by hand what others would do: it creates and removes pods
like a ReplicaSet, binds them to nodes like the scheduler, and makes them ready like the kubelet. `Cluster.turn` then
lets the daemon tick once and sets its clock forward, so that minutes pass within a second. Before each tick it waits
until the daemon knows what the API server has stored, so a busy machine changes no decision.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import object_path
from autoscaler.adapters.kubernetes.api.reflector import ACCEPT_METADATA_LIST, Reflector
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.pods.status import DELETION_COST
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.app.wiring import build_loop, connect_cluster, open_sources
from autoscaler.catalog.scale_targets import LWS_NAME
from autoscaler.config.policy.reload import PolicyFiles
from autoscaler.config.settings import (
    KedaSettings,
    KubeSettings,
    LeaseSettings,
    Mode,
    NodeRequests,
    ScrapeSettings,
    Settings,
)
from autoscaler.core.explain.sentence import Explanation, explain
from autoscaler.core.model.fleet import PendingClass
from autoscaler.daemon.loop import Loop
from autoscaler.ports import TickRecord
from tests.adapters.kubernetes.conftest import in_namespace
from tests.adapters.kubernetes.world import (
    LATER,
    MANIFESTS,
    SCHEDULED,
    annotated,
    condition,
    kueue_role,
    shipped_roles,
    waiting_status,
)
from tests.harness.kube_api import ApiError, User, load_manifests
from tests.harness.process import PATIENCE_S, eventually
from tests.harness.sleep_engine import SleepEngine
from tests.integration.site import Site, recording

GPU, PRODUCT = "nvidia.com/gpu", "nvidia.com/gpu.product"
L4, H100 = {PRODUCT: "NVIDIA-L4"}, {PRODUCT: "NVIDIA-H100-80GB-HBM3"}
SATURATED = 34  # requests in flight, for which a policy with 10 requests per replica needs four
ENGINE = ({"name": "vllm", "image": "vllm", "args": ["--model", "m"]},)
BATCH = 10  # requests that an engine runs at once
TOKENS_PER_S = 20.0  # of each of them
TURN_S = 5.0  # of the daemon's clock between two ticks
STEADY_TURNS, MAX_TURNS = 8, 60
LWS = "leaderworkerset.x-k8s.io/v1"
LWS_GROUP, LWS_WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
PLACEHOLDER = "prewarm-"  # begins the names of Deployments that request nodes

_RUNNING = re.compile(r"(?m)^(vllm:num_requests_running\{.*\}) .*$")
_WAITING = re.compile(r"(?m)^(vllm:num_requests_waiting\{.*\}) .*$")
_SLEEP_STATE = re.compile(r"(?m)^vllm:engine_sleep_state\{.*\n")
_GENERATED = re.compile(r"(?m)^(vllm:generation_tokens_total\{.*\}) .*$")


class LeapingClock(SystemClock):
    """The clocks of the operating system, which a test sets forward."""

    def __init__(self) -> None:
        self._leapt_s = 0.0
        self._leapt = asyncio.Event()
        self._sleeping: set[asyncio.Task[Any] | None] = set()  # since the last leap

    def leap(self, duration_s: float) -> None:
        self._leapt_s += duration_s
        self._sleeping.clear()
        self._leapt.set()
        self._leapt = asyncio.Event()

    def is_awaited(self, *names: str) -> bool:
        """Say whether all tasks whose names begin like this sleep, and know of the last leap."""
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith(names)]
        return self._sleeping.issuperset(tasks)

    def now_s(self) -> float:
        return super().now_s() + self._leapt_s

    def wall_s(self) -> float:
        return super().wall_s() + self._leapt_s

    async def sleep(self, duration_s: float) -> None:
        end_s, task = self.now_s() + duration_s, asyncio.current_task()
        try:
            while (left_s := end_s - self.now_s()) > 0:
                self._sleeping.add(task)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):  # unlike `wait_for`, it swallows no cancellation as it leaps
                        await self._leapt.wait()
        finally:
            self._sleeping.discard(task)


class Engines:
    """Answers /metrics of every pod with a recording of vLLM that shows its load, and lets its engine sleep."""

    def __init__(self, clock: LeapingClock) -> None:
        self._clock = clock
        self._text = recording("running")
        self.requests: dict[str, float] = {}  # by IP of the pod
        self.sleep: dict[str, SleepEngine] = {}  # state of those that were ever asked to sleep, by IP
        self.rests = False  # an engine without requests generates no tokens
        self._generated: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted, by IP
        self.port = 0
        self.before_answer: Callable[[], Awaitable[None]] | None = None  # called once

    async def answer(self, request: web.Request) -> web.Response:
        if (hook := self.before_answer) is not None:
            self.before_answer = None
            await hook()
        ip = request.host.partition(":")[0]
        if request.path != "/metrics":
            return await self.sleep.setdefault(ip, SleepEngine()).handle(request)
        engine = self.sleep.get(ip, SleepEngine())
        load = 0.0 if engine.asleep else self.requests.get(ip, 0.0)
        running = min(load, BATCH)
        generated = self._clock.now_s() * TOKENS_PER_S * max(running, 1.0)
        if self.rests:
            generated, read_s = self._generated.get(ip, (0.0, self._clock.now_s()))
            generated += (self._clock.now_s() - read_s) * TOKENS_PER_S * running
            self._generated[ip] = generated, self._clock.now_s()
        text = self._text
        for series, value in ((_RUNNING, running), (_WAITING, load - running), (_GENERATED, generated)):
            text = series.sub(rf"\g<1> {value:.1f}", text)
        return web.Response(text=_SLEEP_STATE.sub("", text) + engine.metrics())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve on every loopback address, so that each pod has an IP of its own."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", 0).start()
            self.port = runner.addresses[0][1]
            yield
        finally:
            await runner.cleanup()


@dataclass
class Daemon:
    """The daemon in this process; `tick` is one tick of it."""

    loop: Loop
    readiness: Callable[[], dict[str, Any]]
    fleet: KubeFleet
    requests_nodes: bool  # beside its ticks
    last: TickRecord | None = None
    acted: bool = True  # the last tick may have written

    async def tick(self) -> None:
        record = await self.loop.attempt()
        self.last, self.acted = record or self.last, record is None or bool(record.outcomes)

    def row(self, name: str) -> int:
        assert self.last is not None
        return [workload.ref.name for workload in self.last.input.fleet.workloads].index(name)

    def explain(self, name: str) -> Explanation:
        assert self.last is not None
        last = self.last
        return explain(last.input, last.decision, last.policies, last.problems, self.row(name))

    def sentence(self, name: str) -> str:
        return self.explain(name).sentence

    def warnings(self, name: str) -> str:
        return "; ".join(self.explain(name).warnings)

    def classes(self, name: str) -> dict[PendingClass, int]:
        """Return how many replicas of a workload are not ready, by class."""
        assert self.last is not None
        counts = self.last.decision.pending_by_class[:, self.row(name)]
        return {each: int(counts[each]) for each in PendingClass if counts[each]}


Run = Callable[..., AbstractAsyncContextManager[Daemon]]  # of `Cluster.daemon`


class Cluster:
    """One namespace and its nodes."""

    def __init__(self, site: Site, engines: Engines, clock: LeapingClock) -> None:
        self.site, self.api, self.namespace = site, site.api, site.namespace
        self.engines, self.clock = engines, clock
        self.mark = {"for": site.namespace}
        self.daemons: list[Daemon] = []
        self.load: dict[tuple[str, ...], float] = {}  # requests in flight, by the workloads that share them
        self.load_of_pods: dict[str, float] = {}  # those of single pods instead
        self.crashing: set[str] = set()  # workloads whose containers crash
        self.unprobed: set[str] = set()  # workloads whose readiness probe does not ask whether the engine sleeps
        self.starting: set[str] = set()  # workloads whose containers never become ready
        self.nodes: dict[str, dict[str, Any]] = {}
        self._ips: dict[str, str] = {}
        self._counts: dict[str, int] = {}  # as of the last step, like the pods
        self._pods: list[dict[str, Any]] = []
        self._created = 0
        self._groups: set[str] = set()  # LeaderWorkerSets

    async def node(self, name: str, devices: Mapping[str, int], labels: Mapping[str, str] | None = None, **spec: Any):
        """Add a node. Its label `for` keeps it apart from those of other tests."""
        full = f"{name}-{self.namespace}"
        metadata = {"name": full, "labels": {**self.mark, **(labels or {})}}
        await self.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
        allocatable = {"cpu": "64", "memory": "512Gi", "pods": "100"} | {key: str(n) for key, n in devices.items()}
        status = {"allocatable": allocatable, "capacity": allocatable, "conditions": [condition("Ready", at=LATER)]}
        await self.api.set_status("v1", "Node", None, full, status)
        self.nodes[name] = {"name": full, "labels": metadata["labels"], "taints": spec.get("taints", [])} | {
            "devices": dict(devices)
        }

    async def remove_node(self, name: str) -> None:
        await self.api.delete("v1", "Node", None, self.nodes.pop(name)["name"])

    async def workload(
        self,
        name: str,
        replicas: int = 1,
        devices: int = 1,
        resource: str = GPU,
        selector: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        containers: Sequence[Mapping[str, Any]] = ENGINE,
        **annotations: str | None,
    ) -> None:
        """Create a Deployment whose pods need devices of nodes with these labels. The last container has them."""
        notes = {"policy": "quick", "metrics_port": str(self.engines.port), **annotations}
        limits = {"limits": {resource: str(devices)}}
        with_devices = [*containers[:-1], {**containers[-1], "resources": limits}]
        pod = {"nodeSelector": {**self.mark, **(selector or {})}, **(spec or {}), "containers": with_devices}
        notes = annotated(**{key: value for key, value in notes.items() if value is not None})
        await self.site.deployment(name, replicas, notes, 0, **pod)

    async def groups(self, name: str, devices: Sequence[int], **annotations: str) -> None:
        """Create a LeaderWorkerSet of one group, whose pods have this many devices, those of the leader first."""

        def template(count: int) -> dict[str, Any]:
            engine = {**ENGINE[0], "resources": {"limits": {GPU: str(count)}}}
            return {"metadata": {"labels": {"app": name}}, "spec": {"nodeSelector": self.mark, "containers": [engine]}}

        notes = annotated(**{"policy": "quick", "metrics_port": str(self.engines.port), **annotations})
        pods = {"size": len(devices), "leaderTemplate": template(devices[0]), "workerTemplate": template(devices[-1])}
        body = {"apiVersion": LWS, "kind": "LeaderWorkerSet", "metadata": {"name": name, "annotations": notes}}
        await self.api.apply(body | {"spec": {"replicas": 1, "leaderWorkerTemplate": pods}}, namespace=self.namespace)
        self._groups.add(name)

    async def pressed(self, name: str, priority: int = 100, **options: Any) -> None:
        """Create a workload that needs four replicas."""
        await self.workload(name, **{"override.priority": str(priority)}, **options)
        self.load[name,] = SATURATED

    async def pods(self, name: str = "") -> list[dict[str, Any]]:
        """Return the pods of a workload, or all."""
        found = (await self.api.request("GET", f"/api/v1/namespaces/{self.namespace}/pods"))["items"]
        return [pod for pod in found if name in ("", _app(pod))]

    def pending(self) -> list[str]:
        """Return the names of the pods without node, as of the last step."""
        return [pod["metadata"]["name"] for pod in self._pods if not pod["spec"].get("nodeName")]

    async def revert(self, name: str, by: str, is_left_out: bool) -> None:
        """Set a count to 1 like its owner. is_left_out: by an update without the count, of which 1 is the default."""
        path = await self.api.path("apps/v1", "Deployment", self.namespace, name)
        whole = await self.api.request("GET", path)
        if is_left_out:
            del whole["spec"]["replicas"]
        else:
            whole["spec"]["replicas"] = 1
        await self.api.request("PUT", path, whole, fieldManager=by)

    async def deploy(self, name: str, by: str, spec: Mapping[str, Any]) -> None:
        """Patch a Deployment as a tool does that applies manifests."""
        path = await self.api.path("apps/v1", "Deployment", self.namespace, name)
        patch = "application/strategic-merge-patch+json"
        await self.api.request("PATCH", path, {"spec": dict(spec)}, content_type=patch, fieldManager=by)

    def writes(self) -> list[tuple[str, str]]:
        """Return resource and name of each patch that a daemon sent."""
        return [
            (event.permission.resource, event.name)
            for event in self.api.audit()
            if (event.namespace, event.permission.verb) == (self.namespace, "patch")
            and event.user.startswith(f"system:serviceaccount:{self.namespace}:")
            and event.permission.group != "events.k8s.io"
        ]

    async def report(self, pod: str, reporter: str, reason: str) -> None:
        """Write an Event about a pod like an autoscaler of nodes."""
        at = datetime.fromtimestamp(self.clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        uid = (await self.api.get("v1", "Pod", self.namespace, pod))["metadata"]["uid"]
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace, "name": pod, "uid": uid}
        metadata = {"name": f"{pod}.{reason.lower()}", "namespace": self.namespace}
        body = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, "reason": reason}
        body |= {"source": {"component": reporter}, "message": "m", "type": "Normal", "count": 1}
        await self.api.apply(body | {"firstTimestamp": at, "lastTimestamp": at})

    async def quota(self, hard: Mapping[str, str]) -> str:
        """Create a ResourceQuota for pods of a priority class, whose name is returned.

        The API server counts and refuses pods; the status is that of the quota's controller.
        """
        name = f"scarce-{self.namespace}"
        about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": [name]}
        spec = {"hard": dict(hard), "scopeSelector": {"matchExpressions": [scope]}}
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": spec}
        await self.api.apply(about | {"value": 1000}, body, namespace=self.namespace)
        status = {"hard": dict(hard), "used": dict.fromkeys(hard, "0")}
        await self.api.set_status("v1", "ResourceQuota", self.namespace, "gpus", status)
        return name

    async def deny(self, name: str, most: int) -> None:
        """Deny more replicas of a workload by an admission policy, and wait until the API server enforces it."""
        group, policy = "admissionregistration.k8s.io/v1", f"quota-{self.namespace}"
        rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"]}
        wanted = "!has(object.spec.replicas) || object.spec.replicas <= {most}"
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule | {"resources": ["deployments/scale"]}]},
            "matchConditions": [
                {"name": "here", "expression": f"request.namespace == '{self.namespace}' && request.name == '{name}'"}
            ],
            "validations": [
                {"expression": wanted.format(most=most), "message": f"GPU quota of the team is {most}"},
            ],
        }
        binding = {"policyName": policy, "validationActions": ["Deny"]}
        await self.api.apply(
            {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": policy}, "spec": spec},
            {
                "apiVersion": group,
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": policy},
                "spec": binding,
            },
        )

        async def is_enforced() -> bool:
            try:
                await self.site.scale(name, most + 1, by="tests")
            except ApiError as error:
                return error.status in {403, 422}
            return False

        before = (await self.counts(name))[0]
        await eventually(is_enforced, "the policy is enforced")
        await self.site.scale(name, before, by=f"vllm-autoscaler/{self.namespace}/vllm-autoscaler")

    async def counts(self, *names: str) -> list[int]:
        group = "LeaderWorkerSet", LWS
        return [await self.site.replicas(name, *(group if name in self._groups else ())) for name in names]

    async def turn(self, count: int = 1, *, step: bool = True) -> None:
        """Let the cluster act unless told otherwise, then every daemon, and then time pass."""
        for _ in range(count):
            if step:
                await self.step()
            await self._shown()
            for daemon in self.daemons:
                await daemon.tick()
            await self._waiting()
            self.clock.leap(TURN_S)

    async def _shown(self) -> None:
        """Wait until each daemon knows what is stored, and has heard from the API server since the last leap."""
        await self._waiting()
        paths, self.api.written = self.api.written, []
        kinds = {part for path in paths for part in path.split("/")}
        if any(daemon.acted or daemon.requests_nodes for daemon in self.daemons):
            kinds |= {"deployments", "leaderworkersets", "pods"}
        for watch in (watch for daemon in self.daemons for watch in _watches(daemon.fleet)):
            if watch.resource.plural in kinds and not watch.absent:
                what = f"the daemon knows the {watch.resource.plural}"
                await eventually(lambda watch=watch: self._is_known(watch), what, every_s=0.005)

    async def _is_known(self, watch: Reflector[Any]) -> bool:
        path = object_path(watch.resource.root, watch.namespace, watch.resource.plural)
        found = await self.api.request("GET", path, accept=ACCEPT_METADATA_LIST, **dict(watch._selector))
        stored = [each["metadata"] for each in found["items"] or ()]
        versions = {
            (each.get("namespace", ""), each["name"]): (each["uid"], each["resourceVersion"]) for each in stored
        }
        return watch._known == versions

    async def _waiting(self) -> None:
        """Wait until heartbeats, and calls of engines that fall asleep or wake, wait for the clock."""

        async def are_waiting() -> bool:
            return self.clock.is_awaited("heartbeat", "sleep ")

        await eventually(are_waiting, "the daemons wait for the clock", every_s=0.002)

    async def settle(self) -> None:
        """Turn until no count and no pod has changed for some turns."""
        steady, before = 0, None
        for _ in range(MAX_TURNS):
            await self.turn()
            now = self._counts, sorted((pod["metadata"]["name"], is_ready(pod)) for pod in self._pods)
            steady, before = (steady + 1 if now == before else 0), now
            if steady == STEADY_TURNS:
                return
        raise AssertionError(f"the counts are not steady: {before}")

    async def step(self) -> None:
        """Act like the controllers, the scheduler and the kubelets, once."""
        deployments, pods = await self._list("apis/apps/v1", "deployments"), await self.pods()
        sets = await self._list(f"apis/{LWS}", "leaderworkersets") if self._groups else []
        self._counts = {each["metadata"]["name"]: each["spec"]["replicas"] for each in [*deployments, *sets]}
        orphans = [pod for pod in pods if _app(pod).startswith(PLACEHOLDER) and _app(pod) not in self._counts]
        for pod in orphans:
            await self.api.delete("v1", "Pod", self.namespace, pod["metadata"]["name"])
        changed = [await self._replicate(deployment, pods) for deployment in deployments]
        if any([*changed, *[await self._replicate_groups(each, pods) for each in sets]]) or orphans:
            pods = await self.pods()
        await self._schedule(pods)
        new = [pod for pod in pods if pod["spec"].get("nodeName") and not pod["status"].get("containerStatuses")]
        for pod in new:
            await self._start(pod)
        probed = [await self._probe(pod) for pod in pods]
        self._pods = await self.pods() if new or any(probed) else pods
        self._spread_load(self._pods)

    @asynccontextmanager
    async def daemon(
        self,
        environ: Callable[[str, str], None],
        shrink: bool = False,
        nodes: bool = True,
        policy: Path | None = None,
        installation: str = "",
        gateways: Sequence[str] = (),
        node_group_max: Sequence[tuple[str, int]] = (),
        quotas: bool = True,
        quota_file: Path | None = None,
        mode: Mode = Mode.DIRECT,
        node_requests: NodeRequests | None = None,
    ) -> AsyncIterator[Daemon]:
        """Run the daemon by the Role of its mode. environ: sets a variable of the environment.

        shrink: with the right to name the pods that leave. nodes, quotas: with the right to list nodes, and quotas.
        """
        settings = Settings(
            mode=mode,
            policies=(policy or self.site.policy,),
            default_policy="quick",
            namespaces=(self.namespace,),
            scrape=ScrapeSettings(gateways=tuple(gateways), timeout_s=PATIENCE_S),
            node_group_max=tuple(node_group_max),
            quotas=quota_file,
            node_requests=node_requests,
            kube=KubeSettings(),
            lease=LeaseSettings(enabled=False, namespace=installation or self.namespace),
            http=None,
            keda=KedaSettings(host="127.0.0.1", port=0) if mode is Mode.KEDA else None,
        )
        environ(
            "KUBECONFIG",
            str(self.api.kubeconfig(await self._user(shrink, nodes, quotas, mode, node_requests is not None))),
        )
        async with AsyncExitStack() as stack:
            policies = PolicyFiles(settings.policies, self.clock, settings.default_policy)
            sources = await open_sources(stack, settings, self.clock, policies)
            metrics = Metrics(settings.mode.value, settings.lease.installation)
            parts = await connect_cluster(stack, settings, self.clock, policies, sources, metrics)
            loop = await build_loop(stack, parts, settings, metrics)
            tasks = [asyncio.create_task(work(), name=name) for name, work in parts.background]
            assert isinstance(parts.workloads, KubeFleet)
            running = Daemon(loop, parts.detail, parts.workloads, node_requests is not None)

            async def ticked() -> bool:
                await running.tick()
                return running.last is not None

            self.daemons.append(running)
            try:
                await eventually(ticked, "the first tick")
                yield running
            finally:
                self.daemons.remove(running)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _user(self, shrink: bool, nodes: bool, quotas: bool, mode: Mode, prewarm: bool = False) -> User:
        """Return a user with the shipped rights. Each set of rights has a user of its own."""
        roles = [*in_namespace(shipped_roles(mode.value), self.namespace)]
        name = f"daemon-{mode.value}-{shrink:d}{nodes:d}{quotas:d}{prewarm:d}"
        if prewarm:
            role, _, priority_class, *_ = load_manifests(MANIFESTS / "prewarm" / "prewarm.yaml")
            await self.api.apply(priority_class)
            roles += in_namespace([role], self.namespace)
        if shrink:
            roles += load_manifests(MANIFESTS / "shrink" / "rbac.yaml")[:1]
        if quotas:
            roles.append(kueue_role())
        lacking = [["nodes"]] * (not nodes) + [["resourcequotas"]] * (not quotas)
        if lacking:
            roles = [
                role
                | {"rules": [rule for rule in role["rules"] if rule["resources"] not in lacking]}
                | {"metadata": role["metadata"] | {"name": f"{role['metadata']['name']}-{self.namespace}"}}
                for role in roles
            ]
        return await self.api.service_account(self.namespace, name, *roles)

    async def _list(self, root: str, plural: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.api.request("GET", f"/{root}/namespaces/{self.namespace}/{plural}"))[
            "items"
        ]
        return items

    async def _replicate(self, deployment: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> bool:
        """Create missing pods and remove surplus ones, in the order of a ReplicaSet. Return whether any was missing."""
        name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
        present = {"", *(node["name"] for node in self.nodes.values())}
        own = [pod for pod in pods if _app(pod) == name]
        kept = [pod for pod in own if pod["spec"].get("nodeName", "") in present]
        surplus = len(kept) - deployment["spec"]["replicas"]
        orphans = [pod for pod in own if pod not in kept]  # removed by the collector of garbage
        leaving = [*orphans, *sorted(kept, key=_rank)[: max(surplus, 0)]]
        for pod in leaving:
            await self.api.delete("v1", "Pod", self.namespace, pod["metadata"]["name"])
        refused = ""
        for _ in range(-surplus):
            refused = refused or await self._create(name, template)
        if refused or deployment.get("status", {}).get("conditions"):
            failed = {"type": "ReplicaFailure", "status": "True" if refused else "False", "reason": "FailedCreate"}
            failed |= {"message": refused, "lastTransitionTime": LATER, "lastUpdateTime": LATER}
            await self.api.set_status("apps/v1", "Deployment", self.namespace, name, {"conditions": [failed]})
        return bool(leaving) or surplus < 0

    async def _replicate_groups(self, groups: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> bool:
        """Create the pods of missing groups, and remove those of surplus ones, the last first."""
        name, spec = groups["metadata"]["name"], groups["spec"]
        template, own = spec["leaderWorkerTemplate"], {pod["metadata"]["name"] for pod in pods if _app(pod) == name}
        owner = {"apiVersion": LWS, "kind": "LeaderWorkerSet", "name": name, "uid": groups["metadata"]["uid"]}
        wanted = {}
        for group in range(spec["replicas"]):
            for index in range(template["size"]):
                labels = {LWS_NAME: name, LWS_GROUP: str(group), LWS_WORKER: str(index), "app": name}
                pod_name = f"{name}-{group}-{index}" if index else f"{name}-{group}"
                metadata = {"name": pod_name, "labels": labels, "ownerReferences": [owner | {"controller": True}]}
                of_pod = template["workerTemplate" if index else "leaderTemplate"]["spec"]
                wanted[pod_name] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": of_pod}
        for pod_name in own - wanted.keys():
            await self.api.delete("v1", "Pod", self.namespace, pod_name)
        for pod_name in [each for each in wanted if each not in own]:
            await self.api.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", wanted[pod_name])
        return own != wanted.keys()

    async def _create(self, name: str, template: Mapping[str, Any]) -> str:
        """Create one pod. Return the words of the API server if it refuses."""
        self._created += 1
        try:
            replica_set = await self.api.get("apps/v1", "ReplicaSet", self.namespace, f"{name}-1")
        except ApiError:  # a Deployment that the daemon has created
            labels = template["metadata"]["labels"]
            spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
            body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": f"{name}-1"}, "spec": spec}
            (replica_set,) = await self.api.apply(body, namespace=self.namespace)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-1", "controller": True}
        metadata = {"name": f"{name}-1-{self._created}", "labels": template["metadata"]["labels"]}
        metadata["ownerReferences"] = [owner | {"uid": replica_set["metadata"]["uid"]}]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        try:
            await self.api.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", body)
        except ApiError as error:
            assert error.status == 403
            return str(error)
        return ""

    async def _schedule(self, pods: Iterable[dict[str, Any]]) -> None:
        """Bind each pod to the first node that admits it and has its devices left."""
        held: Counter[tuple[str, str]] = Counter()
        for pod in pods:
            for resource, count in _devices(pod).items():
                held[pod["spec"].get("nodeName", ""), resource] += count
        for pod in pods:
            if pod["spec"].get("nodeName"):
                continue
            name, needs = pod["metadata"]["name"], _devices(pod)
            if pod["spec"].get("schedulingGates"):
                await self._unscheduled(pod, "SchedulingGated")
                continue
            for node in self.nodes.values():
                fits = all(node["devices"].get(key, 0) - held[node["name"], key] >= n for key, n in needs.items())
                if fits and _admits(node, pod["spec"]):
                    target = {"apiVersion": "v1", "kind": "Node", "name": node["name"]}
                    path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
                    await self.api.request("POST", path, {"metadata": {"name": name}, "target": target})
                    pod["spec"]["nodeName"] = node["name"]
                    held.update({(node["name"], key): n for key, n in needs.items()})
                    break
            else:
                await self._unscheduled(pod, "Unschedulable")

    async def _unscheduled(self, pod: Mapping[str, Any], reason: str) -> None:
        if not pod["status"].get("conditions"):
            conditions = [condition("PodScheduled", "False", LATER, reason)]
            await self.site.status(pod["metadata"]["name"], {"phase": "Pending", "conditions": conditions})

    async def _start(self, pod: Mapping[str, Any]) -> None:
        name, app = pod["metadata"]["name"], _app(pod)
        if app in self.starting:
            await self.site.status(name, {"phase": "Pending", "conditions": [SCHEDULED]})
            return
        if app in self.crashing:
            await self.site.status(name, waiting_status("CrashLoopBackOff"))
            return
        ip = self._ips.setdefault(name, f"127.1.{len(self._ips) // 250}.{len(self._ips) % 250 + 1}")
        at = datetime.fromtimestamp(self.clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        running = {"name": "vllm", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
        running["state"] = {"running": {"startedAt": at}}
        conditions = [condition("PodScheduled", at=at), condition("Ready", at=at)]
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}
        await self.site.status(name, status | {"containerStatuses": [running]})

    async def _probe(self, pod: Mapping[str, Any]) -> bool:
        """Run the readiness probe of a pod, which asks /is_sleeping; return whether it became ready or unready."""
        engine = self.engines.sleep.get(pod.get("status", {}).get("podIP", ""))
        if engine is None or engine.asleep is not is_ready(pod) or pod["metadata"]["labels"]["app"] in self.unprobed:
            return False
        at = datetime.fromtimestamp(self.clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        others = [each for each in pod["status"]["conditions"] if each["type"] != "Ready"]
        ready = condition("Ready", "False" if engine.asleep else "True", at)
        await self.site.status(pod["metadata"]["name"], pod["status"] | {"conditions": [*others, ready]})
        return True

    async def engine(self, pod: str) -> SleepEngine:
        """Return the engine of a pod, as far as its sleep goes."""
        (ip,) = [each["status"]["podIP"] for each in await self.pods() if each["metadata"]["name"] == pod]
        return self.engines.sleep.setdefault(ip, SleepEngine())

    async def asleep(self, name: str) -> list[str]:
        """Return the pods of a workload whose engine sleeps."""
        found = self.engines.sleep
        sleeping = {ip for ip, engine in found.items() if engine.asleep}
        return [pod["metadata"]["name"] for pod in await self.pods(name) if pod["status"].get("podIP") in sleeping]

    def _spread_load(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Share the requests of each service among its ready pods, as a router does."""
        leads = [pod for pod in pods if pod["metadata"]["labels"].get(LWS_WORKER, "0") == "0"]
        ready = [(_app(pod), pod["status"]["podIP"]) for pod in leads if is_ready(pod)]
        by_name = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods if is_ready(pod)}
        self.engines.requests.clear()
        for names, requests in self.load.items():
            ips = [ip for app, ip in ready if app in names]
            self.engines.requests.update(dict.fromkeys(ips, requests / max(len(ips), 1)))
        self.engines.requests.update({by_name[name]: n for name, n in self.load_of_pods.items() if name in by_name})


def _watches(fleet: KubeFleet) -> list[Reflector[Any]]:
    watch = fleet._watch
    return [*watch._reflectors, *watch._found()]


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _rank(pod: Mapping[str, Any]) -> tuple[bool, bool, int, str]:
    """Return the order in which a ReplicaSet removes pods: unscheduled, not ready, then those that cost least."""
    cost = int((pod["metadata"].get("annotations") or {}).get(DELETION_COST, "0"))
    return bool(pod["spec"].get("nodeName")), is_ready(pod), cost, pod["metadata"]["name"]


def _app(pod: Mapping[str, Any]) -> str:
    """Return the name of the Deployment of a pod."""
    labels = pod["metadata"]["labels"]
    return str(labels.get("app") or labels["app.kubernetes.io/instance"])


def _devices(pod: Mapping[str, Any]) -> Counter[str]:
    needs: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        needs.update({resource: int(count) for resource, count in limits.items() if "/" in resource})
    return needs


def _admits(node: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    tolerated = {each.get("key") for each in spec.get("tolerations", ())}
    selected = spec.get("nodeSelector", {}).items() <= node["labels"].items()
    return selected and all(taint["key"] in tolerated for taint in node["taints"])
