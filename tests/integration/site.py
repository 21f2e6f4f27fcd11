"""Environment of the daemon in the end-to-end tests: one workload in a real cluster, with recorded metrics."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tests.adapters.kubernetes.conftest import in_namespace
from tests.adapters.kubernetes.world import LATER, RUNNING_STATUS, SCHEDULED, World, annotated, condition, shipped_roles
from tests.harness.exposition import ExpositionServer, exposition_server
from tests.harness.kube_api import KubeApi, User
from tests.integration.command import Daemon, daemon

RECORDINGS = Path(__file__).parents[1] / "data" / "vllm"
# A replica holds ten requests, so 4 running and 30 waiting need four.
POLICY = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: quick}
spec:
  objective: {ttft: 1s}
  coldStart: 100ms
  queue: {maxWait: 100ms}
  replicas: {min: 1, max: 8}
  scaleUp: {maxStep: 8, per: 1s}
  scaleDown: {stabilization: 2s, maxStep: 100%, per: 1s}
  capacity: {concurrency: 10, targetUsage: 1}
  inputs: {maxAge: 10s}
"""


def recording(name: str) -> str:
    """Return what a real vLLM server said in a known state: `saturated` is 4 running and 30 waiting."""
    return (RECORDINGS / f"{name}.prom").read_text()


_STATE = re.compile(r"(?m)^(vllm:(?:num_requests|kv_cache)_[a-z_]+\{.*\}) (.*)$")


def loaded(name: str) -> str:
    """Return the recording `running` with the requests of another one, so that nothing was served in between.

    Else an engine would seem to have served 16 requests between two readings. Where a busy machine makes these 0.1 s
    apart, it would be so fast that fewer replicas are needed.
    """
    state = dict(_STATE.findall(recording(name)))
    return _STATE.sub(lambda found: f"{found[1]} {state[found[1]]}", recording("running"))


class Site(World):
    """A namespace, the workload `llama` under the policy `quick`, its metrics, and users for the daemon."""

    def __init__(self, api: KubeApi, namespace: str, directory: Path, metrics: ExpositionServer) -> None:
        super().__init__(api, namespace)
        self.directory = directory
        self.metrics = metrics
        self.port = metrics.address.rpartition(":")[2]
        self.policy = directory / "quick.yaml"
        self.policy.write_text(POLICY)

    def load(self, name: str) -> None:
        """Have every pod show the requests of a recording from now on."""
        self.metrics.serve("/metrics", loaded(name))

    async def workload(self, name: str = "llama", replicas: int = 1, **annotations: str) -> None:
        """Make a Deployment under the policy `quick` with its ready pods."""
        annotations = {"policy": "quick", "metrics_port": self.port, **annotations}
        await self.deployment(name, replicas, annotated(**annotations))
        await self.serve_pods(name, replicas)

    async def serve_pods(self, name: str = "llama", count: int = 1) -> None:
        """Have `count` ready pods that serve metrics on loopback, as controllers and kubelet would bring about."""
        status = RUNNING_STATUS | {
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [SCHEDULED, condition("Ready", "True", LATER)],
        }
        for number in range(count):
            await self.pod(name, f"{name}-1-{number}", status)

    async def user(self, overlay: str = "direct") -> User:
        """Return a ServiceAccount with exactly the Roles that an overlay ships."""
        roles = in_namespace(shipped_roles(overlay), self.namespace)
        return await self.api.service_account(self.namespace, f"daemon-{overlay}", *roles)

    def environment(self, user: User) -> dict[str, str]:
        return {"KUBECONFIG": str(self.api.kubeconfig(user))}

    def daemon(
        self, user: User, mode: str, *arguments: str | Path, ready: bool = True, period: str = "300ms"
    ) -> AbstractAsyncContextManager[Daemon]:
        """Run the daemon on this site, by its Role."""
        return daemon(
            self.directory,
            *("run", "--mode", mode, "--period", period, "--http-host", "127.0.0.1"),
            *("--namespace", self.namespace, "--lease-namespace", self.namespace),
            *("--policies", self.policy, "--default-policy", "quick"),
            *arguments,
            environment=self.environment(user),
            ready=ready,
        )

    async def has(self, count: int, name: str = "llama") -> bool:
        """Say whether a workload is to have this many replicas."""
        return await self.replicas(name) == count

    async def events(self, reason: str = "") -> list[Mapping[str, str]]:
        """Return the Events in the namespace, of one reason or all."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        items = (await self.api.request("GET", path))["items"]
        return [event for event in items if reason in ("", event["reason"])]


@asynccontextmanager
async def site(api: KubeApi, directory: Path) -> AsyncIterator[Site]:
    """Set up a fresh namespace and a metrics server that says `running`."""
    await api.install_crds()
    async with exposition_server() as metrics:
        made = Site(api, await api.namespace("site"), directory, metrics)
        made.load("running")
        yield made
