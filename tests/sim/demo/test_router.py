from autoscaler.sim.demo.router import HOLD_S, MOST_HELD, Router
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Ending, Request
from tests.sim.demo.scenarios import PROFILE


def test_request_goes_to_the_replica_with_the_fewest() -> None:
    router, replicas = Router(), [Replica(PROFILE, 0.0) for _ in range(3)]
    for number in range(7):
        router.arrive(Request(float(number), 10, 1000), replicas, float(number))
    assert [replica.held for replica in replicas] == [3, 2, 2]
    assert (router.arrived, router.dispatched, router.held) == (7, 7, 0)


def test_requests_are_held_when_no_replica_is_ready() -> None:
    router, replica, request = Router(), Replica(PROFILE, 40.0), Request(10.0, 10, 5)
    router.arrive(request, [], 10.0)
    router.release([], 30.0)
    assert (router.held, router.unanswered()) == (1, (request,))
    router.release([replica], 40.0)
    replica.advance(50.0)
    assert router.held == 0
    assert request.ttft_s > 30.0  # what the client waited
    assert replica.metrics.ttft.total < 0.1  # what the engine knows of it


def test_held_request_ends_by_patience_or_eviction() -> None:
    router = Router()
    hasty, patient = Request(0.0, 10, 5, patience_s=20.0), Request(0.0, 10, 5)
    router.arrive(hasty, [], 0.0)
    router.arrive(patient, [], 0.0)
    router.release([], 20.0)
    assert [request.ending for request in router.take_ended()] == [Ending.GIVEN_UP]
    router.release([], HOLD_S - 1)
    assert router.held == 1
    router.release([], HOLD_S)
    assert patient.ending is Ending.REJECTED
    assert (router.given_up, router.expired, router.held) == (1, 1, 0)


def test_full_gateway_rejects_requests() -> None:
    router = Router()
    for _ in range(MOST_HELD + 3):
        router.arrive(Request(0.0, 10, 5), [], 0.0)
    assert (router.held, router.rejected) == (MOST_HELD, 3)
    assert [request.ending for request in router.take_ended()] == [Ending.REJECTED] * 3
