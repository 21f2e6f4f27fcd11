"""Each call over a real connection: answers and refusals."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
import pytest_asyncio

from autoscaler.adapters.keda.answers import HAND_OVER_S
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from autoscaler.adapters.keda.refusals import MAX_REFUSED
from autoscaler.adapters.keda.server import KedaServer
from autoscaler.adapters.keda.service import KedaService
from autoscaler.config.settings import KedaSettings
from autoscaler.ports import ChangeStatus
from tests.adapters.keda.world import METADATA, Cluster, Row, World, scaled_object
from tests.harness.process import PATIENCE_S, eventually

Code = grpc.StatusCode


def reference(name: str = "llama", **changed: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(namespace="prod", name=name, scalerMetadata={**METADATA, **changed})


def metrics_of(name: str = "llama", metric: str = "replicas") -> pb.GetMetricsRequest:
    return pb.GetMetricsRequest(scaledObjectRef=reference(name), metricName=metric)


@dataclass
class Client:
    """A KEDA that calls this daemon."""

    world: World
    stub: Any

    async def refusal(self, method: str, request: Any) -> tuple[Code, str]:
        """Make a call that must be refused; return its status."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(self.stub, method)(request, timeout=PATIENCE_S)
        return caught.value.code(), caught.value.details()

    async def value(self, name: str = "llama") -> pb.MetricValue:
        (value,) = (await self.stub.GetMetrics(metrics_of(name), timeout=PATIENCE_S)).metricValues
        return value


@asynccontextmanager
async def talking(world: World) -> AsyncIterator[Client]:
    settings = KedaSettings(host="127.0.0.1", port=0)
    async with (
        KedaServer(settings, world.service, world.lease, grace_s=0.1) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Client(world, ExternalScalerStub(channel))


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with talking(World(resend_s=0.05)) as client:
        yield client


async def test_metric_has_target_1_in_both_fields(client: Client):
    (spec,) = (await client.stub.GetMetricSpec(reference())).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("replicas", 1, 1.0)


async def test_answer_has_one_value_in_both_fields(client: Client):
    client.world.decide(Row("llama", 7, current=3))
    value = await client.value()
    assert (value.metricName, value.metricValue, value.metricValueFloat) == ("replicas", 7, 7.0)


async def test_zero_is_zero_in_both_fields(client: Client):
    client.world.decide(Row("llama", 0, current=3))
    value = await client.value()
    assert (value.metricValue, value.metricValueFloat) == (0, 0.0)
    assert not (await client.stub.IsActive(reference())).result


async def test_value_depends_on_the_tolerance(client: Client):
    client.world.decide(Row("llama", 10, current=11))
    assert (await client.value()).metricValueFloat == 10.0
    client.world.cluster.add(scaled_object("llama", tolerance_up=None, tolerance_down=None))
    value = await client.value()
    assert (value.metricValue, value.metricValueFloat) == (10, 9.00125)


async def test_hidden_step_is_remembered_for_the_metric(client: Client):
    client.world.cluster.add(scaled_object("llama", tolerance_up=None))
    client.world.decide(Row("llama", 11, current=10))
    assert (await client.value()).metricValueFloat == 11.0
    assert [str(ref) for ref in client.world.answers.swallowed_workloads()] == ["prod/llama"]


async def test_value_is_unavailable_until_a_pod_was_read(client: Client):
    for row in (None, Row("llama", 4, trusted=False, age_s=math.nan)):
        if row:
            client.world.decide(row)
        for method, request in (("IsActive", reference()), ("GetMetrics", metrics_of())):
            code, _ = await client.refusal(method, request)
            assert code == Code.UNAVAILABLE
        assert (await client.stub.GetMetricSpec(reference())).metricSpecs
    client.world.decide(Row("llama", 4))
    assert (await client.stub.IsActive(reference())).result
    assert (await client.value()).metricValue == 4


async def test_value_is_unavailable_when_inputs_are_stale(client: Client):
    client.world.decide(Row("llama", 4, max_age_s=60))
    client.world.clock.time_s += 61
    for method, request in (("IsActive", reference()), ("GetMetrics", metrics_of())):
        code, text = await client.refusal(method, request)
        assert code == Code.UNAVAILABLE and "61 s old; the policy allows 60 s" in text


async def test_follower_refuses_calls(client: Client):
    client.world.lease.leading = False
    client.world.decide()
    client.world.clock.time_s += HAND_OVER_S + 1
    code, text = await client.refusal("GetMetrics", metrics_of())
    assert code == Code.UNAVAILABLE and "no replica is known to lead" in text


@pytest.mark.parametrize("led", [True, False])
async def test_replicas_are_kept_until_the_tick_after_a_new_leader(client: Client, led: bool):
    """A process that was frozen finds old calls. After an error KEDA could take the workload for an idle one."""
    client.world.lease.leading = led
    client.world.decide(Row("llama", 4, current=4))
    client.world.clock.time_s += 120  # frozen
    client.world.lease.leading = not led
    for _ in range(2):
        assert (await client.stub.IsActive(reference())).result
        assert not (await client.stub.GetMetrics(metrics_of())).metricValues  # the HPA then keeps its count
        client.world.clock.time_s += HAND_OVER_S / 2
    client.world.clock.time_s += 1
    code, _ = await client.refusal("GetMetrics", metrics_of())
    assert code == Code.UNAVAILABLE
    client.world.lease.leading = True
    client.world.decide(Row("llama", 5, current=4))
    assert (await client.value()).metricValue == 5


async def test_workload_at_zero_is_not_woken_by_a_new_leader(client: Client):
    client.world.decide(Row("llama", 0, current=0))
    client.world.lease.leading = False
    code, _ = await client.refusal("IsActive", reference())
    assert code == Code.UNAVAILABLE


async def test_value_is_unavailable_until_the_cluster_was_read(client: Client):
    client.world.cluster.synced = False
    code, text = await client.refusal("GetMetrics", metrics_of())
    assert (code, text) == (Code.UNAVAILABLE, "the cluster is not known yet: the first list is not complete")


async def test_unknown_scaled_object_is_not_found(client: Client):
    code, text = await client.refusal("GetMetrics", metrics_of("mistral"))
    assert code == Code.NOT_FOUND and "ScaledObject prod/mistral" in text


async def test_target_is_that_of_the_object_in_the_cluster(client: Client):
    client.world.cluster.add(scaled_object("other-name", target=scaled_object("llama").target))
    client.world.decide(Row("llama", 7), Row("other-name", 99, id=1))
    assert (await client.value("other-name")).metricValue == 7


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"policy": "batch"}, "metadata policy: 'batch'; allowed: 'interactive', as in the cluster"),
        ({"policy": "interactiv"}, "did you mean interactive? no policy 'interactiv'; allowed: batch"),
        ({"policy": ""}, "metadata policy: no policy ''; allowed: batch, development, interactive, realtime"),
        ({"policy": "a\nb"}, r"metadata policy: no policy 'a\nb'; allowed"),
        ({"polciy": "x"}, "metadata polciy: did you mean policy? unknown key; allowed: "),
        ({"policyFromEnv": "X"}, "metadata policyFromEnv: did you mean policy? unknown key"),
        ({"replicas.max": "9"}, "metadata replicas.max: '9'; allowed: absent, as in the cluster"),
        ({"replicas.max": "\x00"}, r"found '\x00'; allowed: "),
        ({"replicas.max": "9" * 2000}, "metadata replicas.max: 2000 characters; allowed: 1024"),
        ({"enableTLS": "perhaps"}, "metadata enableTLS: 'perhaps'; allowed: true, false"),
        ({"scalerAddress": "a b"}, "metadata scalerAddress: 'a b'; allowed: host:port"),
        ({f"key{i}": "x" for i in range(70)}, "metadata number of keys: 72; allowed: at most 64"),
    ],
)
async def test_invalid_metadata_is_named_with_allowed_values(client: Client, metadata: dict[str, str], expected: str):
    client.world.decide()
    for method, request in (
        ("IsActive", reference(**metadata)),
        ("GetMetrics", pb.GetMetricsRequest(scaledObjectRef=reference(**metadata), metricName="replicas")),
    ):
        code, text = await client.refusal(method, request)
        assert code == Code.INVALID_ARGUMENT
        assert text.startswith("ScaledObject prod/llama: ") and expected in text


async def test_metadata_is_validated_again_when_it_changes(client: Client):
    client.world.decide()
    assert (await client.stub.IsActive(reference())).result
    assert (await client.refusal("IsActive", reference(policy="gold")))[0] == Code.INVALID_ARGUMENT


async def test_missing_metadata_is_named(client: Client):
    code, text = await client.refusal("IsActive", pb.ScaledObjectRef(namespace="prod", name="llama"))
    assert code == Code.INVALID_ARGUMENT
    assert "metadata policy: missing" in text and "metadata scalerAddress: missing" in text


async def test_secret_in_metadata_is_never_repeated(client: Client):
    for key, value in (("tlsClientKey", "hunter2" * 10_000), ("password", "hunter2")):
        code, text = await client.refusal("IsActive", reference(**{key: value}))
        assert code == Code.INVALID_ARGUMENT and key in text and "hunter2" not in text


async def test_keys_of_keda_are_valid(client: Client):
    client.world.decide()
    request = reference(enableTLS="true", unsafeSsl="false", caCert="PEM", tlsClientCert="PEM", tlsClientKey="PEM")
    assert (await client.stub.IsActive(request)).result


async def test_invalid_overrides_are_named(client: Client):
    client.world.decide()
    for value, passes in (("12", True), ("many", False)):
        stated = {**METADATA, "replicas.max": value}
        client.world.cluster.add(scaled_object("llama", metadata=tuple(stated.items())))
        request = reference(**{"replicas.max": value})
        if passes:
            assert (await client.stub.IsActive(request)).result
        else:
            code, text = await client.refusal("IsActive", request)
            assert code == Code.INVALID_ARGUMENT
            assert "metadata replicas.max: " in text and "found 'many'; allowed: " in text


async def test_removed_policy_is_named_until_it_is_back(
    client: Client,
):
    client.world.decide()
    book = client.world.book
    assert (await client.stub.IsActive(reference())).result
    left = {name: policy for name, policy in book.policies.items() if name != "interactive"}
    client.world.book = replace(book, policies=left)
    code, text = await client.refusal("IsActive", reference())
    assert (code, text) == (
        Code.INVALID_ARGUMENT,
        "ScaledObject prod/llama: metadata policy: no policy 'interactive'; allowed: batch, development, realtime",
    )
    client.world.book = book
    assert (await client.stub.IsActive(reference())).result


async def test_problem_of_a_scaled_object_is_the_reason(client: Client):
    client.world.cluster.add(scaled_object("llama", problem="two triggers name this scaler; allowed: one"))
    code, text = await client.refusal("GetMetrics", metrics_of())
    assert (code, text) == (
        Code.INVALID_ARGUMENT,
        "ScaledObject prod/llama: two triggers name this scaler; allowed: one",
    )


async def test_all_problems_are_reported_once(client: Client):
    problem = "spec.triggers[0].metricType: found 'Value'; spec.triggers[0].metadata.polciy: unknown key"
    client.world.cluster.add(scaled_object("llama", problem=problem))
    code, text = await client.refusal("IsActive", reference(polciy="x", policy="gold"))
    assert code == Code.INVALID_ARGUMENT
    assert text.startswith(f"ScaledObject prod/llama: {problem}; metadata policy: no policy 'gold'; allowed: ")
    assert text.count("polciy") == 1


@pytest.mark.parametrize(("namespace", "name"), [("", "llama"), ("prod", "../etc"), ("Prod", "x"), ("p", "x" * 300)])
async def test_invalid_name_is_named(client: Client, namespace: str, name: str):
    code, text = await client.refusal("IsActive", pb.ScaledObjectRef(namespace=namespace, name=name))
    assert code == Code.INVALID_ARGUMENT and "allowed: a Kubernetes name" in text and len(text) < 300


async def test_unknown_metric_is_named(client: Client):
    client.world.decide()
    code, text = await client.refusal("GetMetrics", metrics_of(metric="queue"))
    assert (code, text) == (Code.INVALID_ARGUMENT, "metricName: 'queue'; allowed: replicas")


class TestRefusals:
    """Refused calls in /readyz, Events and the explanation."""

    async def refuse(self, client: Client, name: str = "llama", **metadata: str) -> None:
        request = pb.GetMetricsRequest(scaledObjectRef=reference(name, **metadata), metricName="replicas")
        await client.refusal("GetMetrics", request)

    async def test_workload_is_refused_when_every_call_is(self, client: Client):
        client.world.decide()
        target, refusals = scaled_object("llama").target, client.world.answers.refusals
        await self.refuse(client, policy="gold")
        assert refusals.by_workload()[target].startswith(
            "KEDA is refused: ScaledObject prod/llama: metadata policy: no policy 'gold'"
        )
        assert [outcome.status for outcome in await client.world.publish("llama", 4)] == [ChangeStatus.FAILED]
        assert (await client.value()).metricValue == 3
        assert refusals.by_workload() == {}
        assert [outcome.status for outcome in await client.world.publish("llama", 4)] == [ChangeStatus.PUBLISHED]

    async def test_wrong_calls_of_another_client_do_not_count(self, client: Client):
        client.world.decide()
        await client.value()
        await self.refuse(client, policy="gold")
        assert client.world.answers.refusals.by_workload() == {}
        client.world.clock.time_s += 61
        await self.refuse(client, policy="gold")
        assert set(client.world.answers.refusals.by_workload()) == {scaled_object("llama").target}

    async def test_unknown_scaled_object_has_no_workload(self, client: Client):
        await self.refuse(client, "mistral")
        (refusal,) = client.world.answers.refusals.unknown()
        assert "ScaledObject prod/mistral: none with a trigger of this scaler is known" in refusal
        client.world.clock.time_s += 601
        assert client.world.answers.refusals.unknown() == []

    async def test_problem_in_the_cluster_is_not_reported_twice(self, client: Client):
        client.world.cluster.add(scaled_object("llama", problem="metricType: found 'Value'"))
        await self.refuse(client)
        client.world.cluster.add(scaled_object("llama"))
        await client.refusal("GetMetrics", metrics_of())  # no pod was read yet
        client.world.cluster.synced = False
        await client.refusal("GetMetrics", metrics_of())
        assert (client.world.answers.refusals.by_workload(), client.world.answers.refusals.unknown()) == ({}, [])

    async def test_number_of_remembered_refusals_is_limited(self, client: Client):
        refusals = client.world.answers.refusals
        for number in range(3 * MAX_REFUSED):
            refusals.add(("prod", f"so-{number}"), None, "x")
        assert len(refusals.unknown()) == MAX_REFUSED


async def test_invalid_scaled_object_does_not_affect_others(client: Client):
    client.world.cluster.add(scaled_object("bad", problem="nonsense"))
    client.world.decide(Row("llama", 3), Row("bad", 5, id=1))
    answers = await asyncio.gather(
        *(client.stub.GetMetrics(metrics_of(name), timeout=PATIENCE_S) for name in ("bad", "llama") * 50),
        return_exceptions=True,
    )
    assert all(isinstance(answer, grpc.aio.AioRpcError) for answer in answers[::2])
    assert all(answer.metricValues[0].metricValue == 3 for answer in answers[1::2])


async def falls_silent(stream: Any) -> None:
    """Read what was on its way until nothing has come for four times the repeat interval of `true`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await stream.read()
                continue
            return


class TestStreamIsActive:
    async def test_true_is_repeated_until_there_is_a_replica(self, client: Client):
        client.world.decide(Row("llama", 3, current=0))
        stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
        assert [(await stream.read()).result for _ in range(4)] == [True] * 4
        client.world.decide(Row("llama", 3, current=1))
        await falls_silent(stream)

    async def test_true_is_sent_when_another_client_scaled_to_zero(self, client: Client):
        client.world.decide(Row("llama", 3, current=3))
        stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
        assert (await stream.read()).result
        client.world.decide(Row("llama", 3, current=0))
        assert (await stream.read()).result

    async def test_change_is_sent_within_its_tick(self):
        """Not only with the next repetition, which would come after the time-out of the call."""
        async with talking(World(resend_s=10 * PATIENCE_S)) as client:
            client.world.decide(Row("llama", 0, current=0))
            stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
            assert not (await stream.read()).result
            client.world.decide(Row("llama", 1, current=0))
            assert (await stream.read()).result
            client.world.decide(Row("llama", 0))
            assert not (await stream.read()).result

    async def test_false_is_sent_once(self, client: Client):
        client.world.decide(Row("llama", 0, current=0))
        stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
        assert not (await stream.read()).result
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):  # four times the repeat interval of `true`
                await stream.read()

    async def test_false_is_not_sent_with_a_second_trigger(self, client: Client):
        """KEDA before 2.18 scales to zero for a pushed `false`, even if another trigger is active."""
        client.world.cluster.add(scaled_object("llama", is_only_trigger=False))
        client.world.decide(Row("llama", 3, current=3))
        stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
        assert (await stream.read()).result
        client.world.decide(Row("llama", 0, current=3))
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0.2)  # four times the repeat interval of `true`
        assert not (reading.done() or (await client.stub.IsActive(reference())).result)
        client.world.decide(Row("llama", 1, current=0))
        assert (await reading).result

    async def test_stream_is_silent_until_a_pod_was_read(self):
        async with talking(World(resend_s=60)) as client:
            stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0.1)
            client.world.decide(Row("llama", 2, trusted=False, age_s=math.nan))
            await asyncio.sleep(0.05)
            assert not reading.done()
            client.world.decide(Row("llama", 2))
            assert (await reading).result

    async def test_stale_true_is_not_repeated(self, client: Client):
        client.world.decide(Row("llama", 3, current=0))
        stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
        await stream.read()
        client.world.clock.time_s += 61
        await falls_silent(stream)

    async def test_follower_ends_the_stream_with_ok(self, client: Client):
        client.world.decide()
        stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
        await stream.read()
        client.world.lease.leading = False
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == Code.OK

    async def test_stream_ends_when_the_scaled_object_changes_target(self, client: Client):
        client.world.decide()
        for then in (None, scaled_object("llama", target=scaled_object("mistral").target)):
            client.world.cluster.add(scaled_object("llama"))
            stream = client.stub.StreamIsActive(reference(), timeout=PATIENCE_S)
            await stream.read()
            client.world.cluster.objects.clear()
            if then:
                client.world.cluster.add(then)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await stream.read() is not grpc.aio.EOF:
                    pass
            assert caught.value.code() == Code.NOT_FOUND

    async def test_invalid_metadata_ends_the_stream_at_once(self, client: Client):
        stream = client.stub.StreamIsActive(reference(policy="gold"), timeout=PATIENCE_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() == Code.INVALID_ARGUMENT

    async def test_stream_is_forgotten_when_the_client_leaves(self, client: Client):
        client.world.decide()
        streams = [client.stub.StreamIsActive(reference(), timeout=PATIENCE_S) for _ in range(20)]
        for stream in streams:
            await stream.read()
        assert client.world.answers.watchers == 20
        for stream in streams:
            stream.cancel()

        async def nobody_waits() -> bool:
            return client.world.answers.watchers == 0

        await eventually(nobody_waits, "the streams have ended", every_s=0.01)


async def test_spec_stream_sends_the_specs_of_the_call(client: Client):
    stream = client.stub.StreamMetricSpec(reference(), timeout=PATIENCE_S)
    assert await stream.read() == await client.stub.GetMetricSpec(reference())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await stream.read()


@pytest.mark.parametrize("world", ["unsynced", "following", "unknown", "unusable", "undecided"])
async def test_spec_is_answered_when_other_calls_are_refused(client: Client, world: str):
    """After an error of GetMetricSpec KEDA writes the HPA without our metric, and counts no failure.

    A daemon that loses its leadership ends all streams with OK within a second, and KEDA opens them again.
    """
    match world:
        case "unsynced":
            client.world.cluster.synced = False
        case "following":
            client.world.lease.leading = False
        case "unknown":
            client.world.cluster.objects.clear()
        case "unusable":
            client.world.cluster.add(scaled_object("llama", problem="metricType: found 'Value'"))
    for metadata in ({}, {"policy": "gold", "polciy": "x"}, {f"key{i}": "x" for i in range(70)}):
        request = reference(**metadata)
        answer = await client.stub.GetMetricSpec(request, timeout=PATIENCE_S, wait_for_ready=True)
        (spec,) = answer.metricSpecs
        assert (spec.metricName, spec.targetSizeFloat) == ("replicas", 1.0)

        async def streamed(request: pb.ScaledObjectRef = request) -> Any:
            return await client.stub.StreamMetricSpec(request, timeout=PATIENCE_S, wait_for_ready=True).read()

        assert (await eventually(streamed, "the specs")).metricSpecs == [spec]
        for method, refused in (
            ("IsActive", request),
            ("GetMetrics", pb.GetMetricsRequest(scaledObjectRef=request, metricName="replicas")),
        ):
            assert (await client.refusal(method, refused))[1]


async def test_spec_is_answered_for_the_largest_object(client: Client):
    request = reference(note="x" * 1_500_000)
    assert (await client.stub.GetMetricSpec(request, timeout=PATIENCE_S)).metricSpecs
    code, text = await client.refusal("IsActive", request)
    assert code == Code.INVALID_ARGUMENT and "metadata note: unknown key" in text


async def test_spec_is_answered_for_an_invalid_name(client: Client):
    request = pb.ScaledObjectRef(namespace="", name="../etc")
    assert (await client.stub.GetMetricSpec(request, timeout=PATIENCE_S)).metricSpecs


async def test_spec_stream_stays_when_the_scaled_object_is_gone(client: Client):
    stream = client.stub.StreamMetricSpec(reference(), timeout=PATIENCE_S)
    await stream.read()
    client.world.cluster.objects.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await stream.read()


@pytest.mark.slow
async def test_hundreds_of_calls_at_once_get_their_own_answers(client: Client):
    names = [f"model-{i}" for i in range(300)]
    for name in names:
        client.world.cluster.add(scaled_object(name))
    client.world.decide(*(Row(name, i % 50, id=i) for i, name in enumerate(names)))

    async def round_of(name: str) -> tuple[int, bool]:
        await client.stub.GetMetricSpec(reference(name), timeout=PATIENCE_S)
        value = await client.value(name)
        return value.metricValue, (await client.stub.IsActive(reference(name), timeout=PATIENCE_S)).result

    answers = await asyncio.gather(*map(round_of, names))
    assert answers == [(i % 50, i % 50 > 0) for i in range(300)]


async def test_internal_error_does_not_leak_its_text():
    class Broken(Cluster):
        def scaled_object(self, namespace: str, name: str):
            raise RuntimeError("password=hunter2")

    world = World()
    world.service = KedaService(world.answers, Broken(), lambda: world.book)
    async with talking(world) as client:
        code, text = await client.refusal("IsActive", reference())
        assert code == Code.INTERNAL and "hunter2" not in text
