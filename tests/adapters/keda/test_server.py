"""The port, the roles of leader and follower, health and reflection."""

import asyncio
import json
import socket
import time
from collections import Counter
from contextlib import closing, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from autoscaler.adapters.keda.answers import HAND_OVER_S
from autoscaler.adapters.keda.metrics import Calls
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from autoscaler.adapters.keda.server import SERVICE, KedaServer
from autoscaler.config.settings import KedaSettings
from autoscaler.ports import CannotServe
from tests.adapters.keda.test_goaway import GOAWAY, HELLO, sent_away
from tests.adapters.keda.test_service import reference
from tests.adapters.keda.world import World
from tests.harness.process import PATIENCE_S, eventually

HERE = "127.0.0.1"
MOST_REFUSED = 100  # tries in a row while the port changes hands; usually one or two, on a busy machine more


def server(world: World, port: int = 0, host: str = HERE) -> KedaServer:
    return KedaServer(KedaSettings(host=host, port=port), world.service, world.lease, grace_s=0.1)


def channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"{HERE}:{port}", [("grpc.use_local_subchannel_pool", 1)])


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HERE, port)
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it was accepted by a listener that closed
        return False
    writer.close()
    await writer.wait_closed()
    return True


@pytest.fixture
def world() -> World:
    world = World()
    world.decide()
    return world


async def test_free_port_is_used_when_the_port_is_0(world: World):
    async with server(world) as serving, channel(serving.port) as connection:
        assert serving.port > 0
        assert (await ExternalScalerStub(connection).IsActive(reference(), timeout=PATIENCE_S)).result


async def test_error_names_a_port_in_use(world: World):
    async with server(world) as first:
        with pytest.raises(CannotServe, match=rf"gRPC port {first.port} on 127\.0\.0\.1: Address already in use"):
            async with server(World(), first.port):
                pass
    with closing(socket.create_server((HERE, 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotServe, match=rf"gRPC port {port} on 127\.0\.0\.1: Address already in use"):
            async with server(World(), port):
                pass


async def test_error_names_a_host_that_cannot_be_bound(world: World):
    with pytest.raises(CannotServe, match=r"on 203\.0\.113\.1: Cannot assign requested address"):
        async with server(world, 6000, "203.0.113.1"):
            pass


async def test_port_is_free_after_the_server_stopped(world: World):
    async with server(world) as first:
        port = first.port
    assert not await is_listening(port)
    async with server(world, port) as second:
        assert second.port == port


def role(world: World, *, leading: bool = False, has_other_leader: bool = False) -> None:
    """Change the role, and tick in it."""
    world.lease.leading, world.lease.has_other_leader = leading, has_other_leader
    world.decide()
    world.clock.time_s += HAND_OVER_S + 1


def balanced(*servers: KedaServer) -> grpc.aio.Channel:
    """Connect to several servers, like KEDA to the addresses of a headless Service."""
    balancing = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    addresses = ",".join(f"{HERE}:{server.port}" for server in servers)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", balancing)]
    return grpc.aio.insecure_channel(f"ipv4:{addresses}", options)


async def serves(serving: KedaServer) -> bool:
    return serving.serving


async def sends_away(port: int) -> bool:
    """Return whether a connection gets GOAWAY before it can make a call."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):  # the port is between two roles
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(HELLO)
        try:
            return await sent_away(reader)
        finally:
            writer.close()
    return False


@pytest.mark.slow
async def test_calls_go_to_the_leader_when_followers_share_its_name(world: World):
    other = World()
    role(other, has_other_leader=True)
    async with server(world) as leader, server(other) as follower, balanced(follower, leader) as connection:
        await eventually(lambda: sends_away(follower.port), "the follower sends connections on")
        stub = ExternalScalerStub(connection)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 1.5:  # the follower has sent the connection away a few times by then
            assert (await stub.IsActive(reference(), timeout=PATIENCE_S)).result
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_call_waits_for_the_new_leader_when_another_led(world: World):
    role(world, has_other_leader=True)
    async with server(world) as serving, channel(serving.port) as connection:
        await eventually(lambda: sends_away(serving.port), "the follower sends connections on")
        call = asyncio.ensure_future(_answer(ExternalScalerStub(connection).IsActive(reference(), timeout=PATIENCE_S)))
        _, waiting = await asyncio.wait([call], timeout=1.2)  # sent away twice meanwhile
        assert waiting
        role(world, leading=True)
        assert (await call).result


async def _answer(call: Any) -> Any:
    return await call


async def test_only_the_spec_is_answered_when_no_process_leads(world: World):
    role(world)
    async with server(world) as serving, channel(serving.port) as connection:
        stub = ExternalScalerStub(connection)
        assert (await stub.GetMetricSpec(reference(), timeout=PATIENCE_S)).metricSpecs
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.IsActive(reference(), timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        role(world, leading=True)
        await eventually(lambda: serves(serving), "the new leader serves")
        assert (await stub.IsActive(reference(), timeout=PATIENCE_S, wait_for_ready=True)).result


async def test_connection_ends_soon_when_no_process_leads(world: World):
    role(world)
    async with server(world) as serving:
        reader, writer = await asyncio.open_connection(HERE, serving.port)
        writer.write(HELLO)
        kinds = set()
        async with asyncio.timeout(PATIENCE_S):
            while GOAWAY not in kinds:
                header = await reader.readexactly(9)
                kinds.add(header[3])
                await reader.readexactly(int.from_bytes(header[:3]))
        writer.close()
        await writer.wait_closed()


@pytest.mark.slow
async def test_port_is_never_closed_for_long_when_the_leader_changes(world: World):
    async with server(world) as serving:
        for leading, has_other_leader in [(False, True), (True, False), (False, False), (False, True), (True, False)]:
            role(world, leading=leading, has_other_leader=has_other_leader)
            closed, seen, before = 0, 0, serving._listening
            async with asyncio.timeout(PATIENCE_S):
                while serving._listening in (None, before) or seen < 5:
                    seen += 1
                    closed += not await is_listening(serving.port)
                    await asyncio.sleep(0.02)
            assert closed <= MOST_REFUSED
            assert serving.serving == leading


class Lapsing:
    """Leads until it is set to lapse; `noticed` is set when the leadership was read after that."""

    def __init__(self) -> None:
        self.lapsed, self.noticed = False, asyncio.Event()

    @property
    def leading(self) -> bool:
        if self.lapsed:
            self.noticed.set()
        return not self.lapsed

    @property
    def has_other_leader(self) -> bool:
        return self.lapsed


def be_busy() -> None:
    """Block the event loop while gRPC's threads finish."""
    time.sleep(0.003)


@pytest.mark.slow
async def test_follower_can_be_stopped_at_any_moment(world: World):
    """A daemon that stops releases its lease first, so the port is often closing already when the rest ends."""
    for steps in range(48):
        lease = Lapsing()
        settings = KedaSettings(host=HERE, port=0)
        serving = KedaServer(settings, world.service, lease, grace_s=0.1, check_s=0.001)
        await serving.__aenter__()
        lease.lapsed = True
        await lease.noticed.wait()
        for _ in range(steps // 6):
            await asyncio.sleep(0)
        be_busy()
        for _ in range(steps % 6):
            await asyncio.sleep(0)
        end = asyncio.create_task(serving.__aexit__(None, None, None))
        _, unfinished = await asyncio.wait({end}, timeout=PATIENCE_S)
        assert not unfinished, f"{steps}: the server does not end"
        assert not serving.serving
        assert not await is_listening(serving.port)


async def test_lost_port_is_reported_and_bound_again(world: World):
    async with server(world) as serving:
        assert serving.serving
        await serving._listening.stop(0)
        with closing(socket.create_server((HERE, serving.port))):
            role(world, has_other_leader=True)

            async def is_reported() -> bool:
                return "Address already in use" in serving.problem

            await eventually(is_reported, "the lost port is reported")
            role(world, leading=True)

        await eventually(lambda: serves(serving), "the port is taken back")
        assert serving.problem == ""


async def test_health_service_reports_serving(world: World):
    async with server(world) as serving, channel(serving.port) as connection:
        health = health_pb2_grpc.HealthStub(connection)
        for name in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nonsense"), timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_scaler_and_its_messages(world: World):
    async with server(world) as serving, channel(serving.port) as connection:
        call = reflection_pb2_grpc.ServerReflectionStub(connection).ServerReflectionInfo(timeout=PATIENCE_S)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {service.name for service in (await call.read()).list_services_response.service}
        assert {"externalscaler.ExternalScaler", "grpc.health.v1.Health"} <= services
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="externalscaler.MetricValue"))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()


async def test_oversized_request_is_refused(world: World):
    async with server(world) as serving, channel(serving.port) as connection:
        stub = ExternalScalerStub(connection)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.IsActive(reference(caCert="x" * 3_000_000), timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.IsActive(reference(), timeout=PATIENCE_S)).result


@pytest.mark.slow
async def test_thousands_of_calls_at_once_are_answered(world: World):
    """As KEDA sends them to a new leader: faster than they are accepted, so that they queue."""
    calls, burst = Calls(), 5000
    settings = KedaSettings(host=HERE, port=0)
    async with KedaServer(settings, world.service, world.lease, calls, grace_s=0.1) as serving:
        with grpc.insecure_channel(f"{HERE}:{serving.port}", [("grpc.use_local_subchannel_pool", 1)]) as connection:
            stub = ExternalScalerStub(connection)
            # Sent by gRPC's own threads while this one, which is the server's as well, is not free to answer.
            answers = [stub.IsActive.future(reference(), timeout=PATIENCE_S) for _ in range(burst)]
            codes = await asyncio.to_thread(lambda: Counter(answer.code() for answer in answers))
    assert codes == {grpc.StatusCode.OK: burst}
    assert calls.counts == {("IsActive", "OK"): burst}


async def test_invalid_bytes_do_not_affect_other_calls(world: World):
    async with server(world) as serving:
        reader, writer = await asyncio.open_connection(HERE, serving.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 10)
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.close()
        async with channel(serving.port) as connection:
            nonsense = connection.unary_unary(f"/{SERVICE}/IsActive")
            with pytest.raises(grpc.aio.AioRpcError):
                await nonsense(b"\xff" * 100, timeout=PATIENCE_S)
            assert (await ExternalScalerStub(connection).IsActive(reference(), timeout=PATIENCE_S)).result


async def test_peer_is_disconnected_when_it_answers_no_ping(world: World):
    settings = KedaSettings(host=HERE, port=0)
    async with KedaServer(settings, world.service, world.lease, grace_s=0.1, keepalive_s=0.3) as serving:
        reader, writer = await asyncio.open_connection(HERE, serving.port)
        writer.write(HELLO)
        kinds = set()
        async with asyncio.timeout(PATIENCE_S):
            while len(header := await reader.read(9)) == 9:
                kinds.add(header[3])
                await reader.readexactly(int.from_bytes(header[:3]))
        writer.close()
        await writer.wait_closed()
    assert 0x6 in kinds  # PING; the connection ended without an answer to it


async def test_silent_and_surplus_connections_are_closed(world: World):
    """Each takes an open file, and the daemon needs those for the cluster and for pods."""
    settings = KedaSettings(host=HERE, port=0)
    async with (
        asyncio.timeout(PATIENCE_S),
        KedaServer(settings, world.service, world.lease, grace_s=0.1, handshake_s=0.2) as hasty,
        KedaServer(settings, world.service, world.lease, grace_s=0.1, max_connections=2) as full,
    ):
        reader, writer = await asyncio.open_connection(HERE, hasty.port)
        await reader.read()  # to its end
        peers = [await asyncio.open_connection(HERE, full.port) for _ in range(3)]
        for _, each in peers:
            each.write(HELLO)
        ends = [asyncio.create_task(peer.read()) for peer, _ in peers]
        done, kept = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(kept)) == (1, 2)
        for each in (writer, *(each for _, each in peers)):
            each.close()
        await asyncio.wait(ends)


@pytest.mark.slow
async def test_silent_stream_stays_when_pings_are_answered(world: World):
    settings = KedaSettings(host=HERE, port=0)
    async with (
        KedaServer(settings, world.service, world.lease, grace_s=0.1, keepalive_s=3.0) as serving,
        channel(serving.port) as connection,
    ):
        stream = ExternalScalerStub(connection).StreamMetricSpec(reference(), timeout=PATIENCE_S)
        await stream.read()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.0):  # of two pings, each answered within a second
                await stream.read()
