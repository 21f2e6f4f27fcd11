"""What llm-d's router (EPP) with flow control would say of the simulated fronts: names of `llm_d_epp_*` and, beside
them, the older ones it still emits. A series exists from the first request of its model on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoscaler.sim.demo.plant import Lane, Plant
from autoscaler.sim.demo.text import labels, number

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = dict[str, str]


def render(plant: Plant) -> str:
    """Return the gateway's `/metrics`."""
    ready = plant.ready_counts()
    lanes = [(lane, ready[row]) for row, lane in enumerate(plant.lanes) if lane.front.arrived]
    return "".join(
        [
            *_family(
                ("llm_d_epp_request_total", "inference_objective_request_total"),
                "counter",
                "Counter of inference requests for each model.",
                [(_model(lane) | {"fairness_id": "", "priority": "0"}, lane.front.arrived) for lane, _ in lanes],
            ),
            *_family(
                ("llm_d_epp_ready_endpoints", "inference_pool_ready_pods"),
                "gauge",
                "The number of ready endpoints in the inference pool.",
                [({"name": lane.setup.setup.name}, count) for lane, count in lanes],
            ),
            *_family(
                ("llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size"),
                "gauge",
                "Current number of requests being managed by flow control, from submission to dispatch or rejection.",
                [(_queue(lane) | _model(lane), lane.front.held) for lane, _ in lanes],
            ),
            *_family(
                ("llm_d_epp_flow_control_requests_total", "inference_extension_flow_control_requests_total"),
                "counter",
                "Requests that left flow control, by outcome.",
                [
                    ({"outcome": outcome, "priority": "0", "inference_pool": lane.setup.setup.name}, count(lane))
                    for lane, _ in lanes
                    for outcome, count in _OUTCOMES
                ],
            ),
        ]
    )


_OUTCOMES: tuple[tuple[str, Callable[[Lane], float]], ...] = (
    ("Dispatched", lambda lane: lane.front.dispatched),
    ("RejectedCapacity", lambda lane: lane.front.rejected),
    ("EvictedTTL", lambda lane: lane.front.expired),
    ("EvictedContextCancelled", lambda lane: lane.front.given_up),
)


def _model(lane: Lane) -> _Labels:
    return {"model_name": lane.setup.model, "target_model_name": lane.setup.model}


def _queue(lane: Lane) -> _Labels:
    return {"fairness_id": "default", "priority": "0", "inference_pool": lane.setup.setup.name}


def _family(names: Sequence[str], kind: str, text: str, rows: Sequence[tuple[_Labels, float]]) -> list[str]:
    return [
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        + "".join(f"{name}{labels(dict(sorted(where.items())))} {number(value)}\n" for where, value in rows)
        for name in names
    ]
