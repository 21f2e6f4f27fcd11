"""KEDA mode end to end: the command, a real API server, a gRPC client as KEDA, and models of KEDA and the HPA.

`tests/hpa.py` is the HPA that reads the answers. A real KEDA asks the daemon in `tests/keda`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from tests.adapters.kubernetes.world import shipped_roles
from tests.harness.certificates import Certificates
from tests.harness.exposition import Answer
from tests.harness.kube_api import Permission, granted
from tests.harness.process import PATIENCE_S, eventually, free_port
from tests.hpa import EXACT, Executor, Hpa, keda_value
from tests.integration.command import Daemon
from tests.integration.site import POLICY, Site
from tests.integration.test_direct import changes, ticks

pytestmark = pytest.mark.integration

TRIGGER = {"type": "external-push", "metadata": {"scalerAddress": "vllm-autoscaler-keda:6000", "policy": "quick"}}
SHIPPED = yaml.safe_load((Path(__file__).parents[2] / "manifests" / "keda" / "scaledobject.yaml").read_text())["spec"]
EPP_QUEUE = 'llm_d_epp_flow_control_queue_size{{inference_pool="llama",model_name="tiny"}} {waiting}\n'


class Keda:
    """Makes KEDA's calls for one ScaledObject over one connection."""

    def __init__(
        self, namespace: str, port: int, credentials: grpc.ChannelCredentials | None = None, name: str = "llama"
    ) -> None:
        target = f"localhost:{port}"
        # At most one second between attempts, for which KEDA waits up to two minutes.
        options = [("grpc.max_reconnect_backoff_ms", 1000), ("grpc.initial_reconnect_backoff_ms", 100)]
        self._channel = (
            grpc.aio.secure_channel(target, credentials, options)
            if credentials
            else grpc.aio.insecure_channel(target, options)
        )
        self.stub = ExternalScalerStub(self._channel)
        self.reference = pb.ScaledObjectRef(namespace=namespace, name=name, scalerMetadata=TRIGGER["metadata"])

    async def __aenter__(self) -> "Keda":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, method: Any, request: Any) -> Any:
        """Call once, and again if a busy machine stopped the daemon for its deadline of a second."""
        while True:
            try:
                return await method(request, timeout=PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                if not (error.details() or "").startswith("no answer within 1 s"):
                    raise

    async def metrics(self) -> pb.GetMetricsResponse:
        (spec,) = (await self.call(self.stub.GetMetricSpec, self.reference)).metricSpecs
        request = pb.GetMetricsRequest(scaledObjectRef=self.reference, metricName=spec.metricName)
        answer: pb.GetMetricsResponse = await self.call(self.stub.GetMetrics, request)
        return answer

    async def is_active(self) -> bool:
        return bool((await self.call(self.stub.IsActive, self.reference)).result)

    async def value(self) -> float:
        """Return the one published value; both fields must agree."""
        (value,) = (await self.metrics()).metricValues
        assert value.metricValue == value.metricValueFloat
        return float(value.metricValueFloat)

    async def refusal(self) -> tuple[grpc.StatusCode, str] | None:
        """Return status and text of a refused call; None: it was answered."""
        try:
            await self.metrics()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return None

    async def publishes(self, count: int) -> bool:
        try:
            return await self.value() == count
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False

    async def woken(self) -> None:
        """Read the stream until the workload is active.

        As KEDA does, it ignores `false`, and opens the stream again when it ends: so does the connection that began
        before the daemon led.
        """
        while True:
            call = self.stub.StreamIsActive(self.reference)
            try:
                async for message in call:
                    if message.result:
                        call.cancel()
                        return
            except grpc.aio.AioRpcError as error:  # the daemon closes old connections when it begins to lead
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            await asyncio.sleep(0.1)


def answered(keda: Keda) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return await keda.refusal() is None

    return probe


async def scaled_object(site: Site, **spec: Any) -> None:
    """Create the shipped ScaledObject for `llama`, and the HPA that KEDA would create."""
    rest = {key: value for key, value in SHIPPED.items() if key not in ("scaleTargetRef", "triggers")}
    await site.scaled_object("llama", "llama", TRIGGER, **{**rest, **spec})
    await site.hpa("keda-hpa-llama", "llama", scaled_object="llama")


def running(site: Site, user: Any, port: int, *arguments: str | Path, **options: Any) -> Any:
    more = ("--scrape", "--grpc-host", "127.0.0.1", "--grpc-port", str(port))
    return site.daemon(user, "keda", *more, *arguments, **options)


async def test_first_answer_waits_for_a_trusted_tick(site: Site):
    await site.deployment("llama", annotations={"vllm-autoscaler.io/metrics-port": site.port})
    await site.serve_pods()
    await scaled_object(site)
    site.load("saturated")
    site.metrics.serve("/metrics", Answer("loading", status=503))
    user, port = await site.user("keda"), free_port()
    hpa, executor = Hpa(up=EXACT, down=EXACT), Executor()
    async with running(site, user, port) as daemon, Keda(site.namespace, port) as keda:
        await ticks(daemon, 3)

        async def waits() -> bool:
            code, text = await keda.refusal() or (None, "")
            assert code is grpc.StatusCode.UNAVAILABLE
            return "llama" in text

        await eventually(waits, "its refusal names the workload")  # those of a follower do not
        site.load("saturated")
        await eventually(lambda: keda.publishes(4), "four replicas are published")
        hpa.replicas = executor.poll(0.0, await keda.is_active(), hpa.replicas)
        assert hpa.sync(0.0, keda_value(await keda.value(), 0)) == 4
        assert await site.has(1), "the daemon itself changes nothing"

        await site.scale("llama", 4, by="horizontal-pod-autoscaler")
        (event,) = await eventually(lambda: site.events("Recommended"), "an Event")
        assert "from 1 to 4 replicas" in event["note"]

        site.load("drained")
        await site.serve_pods(count=4)
        await eventually(lambda: keda.publishes(1), "one replica is published")
        assert hpa.sync(15.0, keda_value(await keda.value(), 0)) == 1
        assert await daemon.metric("vllm_autoscaler_other_owner", workload="llama") is None
    without_shrink_role = {Permission("", "pods", "patch")}  # costs of deletion are an optional right
    assert site.api.refused(user) == without_shrink_role
    assert site.api.used(user) - without_shrink_role <= granted(*shipped_roles("keda"))
    assert not [event for event in site.api.audit(user) if event.permission.resource.endswith("/scale")]


async def test_one_request_at_the_gateway_wakes_from_zero(site: Site):
    site.policy.write_text(POLICY + "  scaleToZero: {enabled: true, idleAfter: 1s}\n")
    await site.deployment("llama", replicas=0, annotations={"vllm-autoscaler.io/metrics-port": site.port})
    await scaled_object(site, minReplicaCount=0)
    gateway = site.metrics.serve("/gateway", EPP_QUEUE.format(waiting=0))
    user, port = await site.user("keda"), free_port()
    async with (
        running(site, user, port, "--gateway", gateway, period="1s") as daemon,
        Keda(site.namespace, port) as keda,
    ):
        await eventually(answered(keda), "an answer")
        assert not await keda.is_active()
        woken = asyncio.ensure_future(keda.woken())
        asked = site.metrics.asked("/gateway")
        await ticks(daemon, 2)
        assert site.metrics.asked("/gateway") > asked, "the first tick may have asked before"
        assert not woken.done()

        site.metrics.serve("/gateway", EPP_QUEUE.format(waiting=1))
        ticked = await daemon.metric("vllm_autoscaler_ticks_total", result="ok") or 0.0
        await asyncio.wait_for(woken, PATIENCE_S)
        change, *_ = await eventually(lambda: changes(site, daemon), "the change")
        silent = await daemon.metric("vllm_autoscaler_source_failures_total", source="gateway") or 0.0
        assert change["tick"] <= ticked + 2 + silent, "the next tick after one that may have read before"
        assert Executor(min_replicas=0).poll(0.0, True, 0) == 1
        assert await keda.value() == 1
        assert (await daemon.workload(site.namespace, "llama"))["explanation"]["signal"] == "wake"


async def test_follower_sends_calls_on_when_another_daemon_leads(site: Site):
    await site.deployment("llama", annotations={"vllm-autoscaler.io/metrics-port": site.port})
    await site.serve_pods()
    await scaled_object(site)
    user, ports = await site.user("keda"), (free_port(), free_port())
    async with (
        running(site, user, ports[0]) as first,
        Keda(site.namespace, ports[0]) as asks_first,
        Keda(site.namespace, ports[1]) as asks_second,
    ):
        await eventually(answered(asks_first), "the first answers")
        async with running(site, user, ports[1]) as second:
            await ticks(second, 2)

            async def calls_wait() -> bool:
                try:
                    await asks_second.stub.IsActive(asks_second.reference, timeout=1)
                except grpc.aio.AioRpcError as error:
                    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                return False

            await eventually(calls_wait, "calls to the follower wait for the leader")
            await eventually(answered(asks_first), "the first still answers")
            assert [(await daemon.readyz())["leader"] for daemon in (first, second)] == [True, False]
            first.signal(15)
            assert await first.ended() == 0
            await eventually(answered(asks_second), "the second answers")
            gone = await asks_first.refusal()
            assert gone is not None
            assert gone[0] is grpc.StatusCode.UNAVAILABLE


async def test_workload_with_refused_calls_is_reported_and_not_scaled(site: Site):
    """It is reported by KEDA's call, /readyz, an Event of the workload and the explanation."""
    await site.deployment("llama", annotations={"vllm-autoscaler.io/metrics-port": site.port})
    await site.serve_pods()
    site.load("saturated")  # needs four replicas
    metadata = {**TRIGGER["metadata"], "polisy": "quick"}
    trigger = {"type": "external", "metricType": "Value", "metadata": metadata}
    await site.scaled_object("llama", "llama", trigger, minReplicaCount=1)
    await site.hpa("keda-hpa-llama", "llama", scaled_object="llama")
    user, port = await site.user("keda"), free_port()
    async with running(site, user, port) as daemon, Keda(site.namespace, port) as keda:
        keda.reference.scalerMetadata.update(metadata)
        (event,) = await eventually(lambda: site.events("ProblemDetected"), "an Event")

        async def refused_text() -> str:
            code, text = await keda.refusal() or (None, "")
            return text if code is grpc.StatusCode.INVALID_ARGUMENT else ""

        # A connection from before the daemon led is closed once, and its call is UNAVAILABLE.
        text = await eventually(refused_text, "a call is refused for its metadata")
        told = (await daemon.readyz())["workload_problems"][f"{site.namespace}/llama"]
        explained = (await daemon.workload(site.namespace, "llama"))["explanation"]["sentence"]
        for words in (text, told, event["note"], explained):
            assert "spec.triggers[0].metricType: multiplies our count" in words
            assert "metadata.polisy: did you mean policy? unknown key" in words

        await site.patch("ScaledObject", "llama", {"spec": {"triggers": [TRIGGER]}})
        keda.reference.scalerMetadata.clear()
        keda.reference.scalerMetadata.update({**TRIGGER["metadata"], "policy": "gold"})  # differs from the cluster
        await eventually(lambda: site.events("ProblemGone"), "an Event that it is mended")
        assert "metadata policy: no policy 'gold'" in await eventually(refused_text, "a call is refused for its policy")

        async def refusal_is_told() -> bool:
            told = [event["note"] for event in await site.events("ProblemDetected")]
            return any(note.startswith("KEDA is refused: ScaledObject") for note in told)

        await eventually(refusal_is_told, "an Event of the refused call")
        await eventually(lambda: site.events("ScaleFailed"), "a change that KEDA cannot hear is none")

        keda.reference.scalerMetadata.update(TRIGGER["metadata"])
        await eventually(lambda: keda.publishes(4), "four replicas are published")
        await eventually(lambda: site.events("Recommended"), "an Event")

        await site.patch("ScaledObject", "llama", {"spec": {"minReplicaCount": 0}})  # the policy never goes to zero

        async def risk_is_told() -> bool:
            problems = (await daemon.readyz())["workload_problems"]
            return "minReplicaCount: 1" in problems.get(f"{site.namespace}/llama", "")

        await eventually(risk_is_told, "/readyz says that KEDA may go to zero")


async def test_grpc_serves_only_clients_with_a_valid_certificate(site: Site, certificates: Certificates):
    await site.deployment("llama", annotations={"vllm-autoscaler.io/metrics-port": site.port})
    await site.serve_pods()
    await scaled_object(site)
    user, port = await site.user("keda"), free_port()
    server, client = certificates.issue("localhost"), certificates.issue("keda")
    tls = ("--grpc-cert", server.certificate, "--grpc-key", server.key, "--grpc-ca", certificates.ca)
    mutual = grpc.ssl_channel_credentials(
        certificates.ca.read_bytes(), client.key.read_bytes(), client.certificate.read_bytes()
    )
    one_sided = grpc.ssl_channel_credentials(certificates.ca.read_bytes())

    async def refused(keda: Keda) -> bool:
        refusal = await keda.refusal()
        return refusal is not None and refusal[0] is grpc.StatusCode.UNAVAILABLE

    daemon: Daemon
    async with running(site, user, port, *tls) as daemon:
        async with Keda(site.namespace, port, mutual) as keda:
            await eventually(answered(keda), "an answer")
        async with Keda(site.namespace, port, one_sided) as keda:
            assert await refused(keda)
        async with Keda(site.namespace, port) as keda:
            assert await refused(keda)
        assert daemon.code is None
