"""The metrics page of llm-d's router (EPP) with flow control: `llm_d_epp_*` and the older names that it also emits.

A series exists from the first request of its model on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoscaler.sim.demo.simulation import Simulation, SimWorkload
from autoscaler.sim.demo.text import labels, number

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = dict[str, str]


def render(simulation: Simulation) -> str:
    """Return the gateway's `/metrics`."""
    ready = simulation.ready_counts()
    sim_workloads = [
        (sim_workload, ready[row])
        for row, sim_workload in enumerate(simulation.sim_workloads)
        if sim_workload.router.arrived
    ]
    return "".join(
        [
            *_family(
                ("llm_d_epp_request_total", "inference_objective_request_total"),
                "counter",
                "Counter of inference requests for each model.",
                [
                    (_model(sim_workload) | {"fairness_id": "", "priority": "0"}, sim_workload.router.arrived)
                    for sim_workload, _ in sim_workloads
                ],
            ),
            *_family(
                ("llm_d_epp_ready_endpoints", "inference_pool_ready_pods"),
                "gauge",
                "The number of ready endpoints in the inference pool.",
                [({"name": sim_workload.setup.deployment.name}, count) for sim_workload, count in sim_workloads],
            ),
            *_family(
                ("llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size"),
                "gauge",
                "Current number of requests being managed by flow control, from submission to dispatch or rejection.",
                [
                    (_queue(sim_workload) | _model(sim_workload), sim_workload.router.held)
                    for sim_workload, _ in sim_workloads
                ],
            ),
            *_family(
                ("llm_d_epp_flow_control_requests_total", "inference_extension_flow_control_requests_total"),
                "counter",
                "Requests that left flow control, by outcome.",
                [
                    (
                        {"outcome": outcome, "priority": "0", "inference_pool": sim_workload.setup.deployment.name},
                        count(sim_workload),
                    )
                    for sim_workload, _ in sim_workloads
                    for outcome, count in _OUTCOMES
                ],
            ),
        ]
    )


_OUTCOMES: tuple[tuple[str, Callable[[SimWorkload], float]], ...] = (
    ("Dispatched", lambda sim_workload: sim_workload.router.dispatched),
    ("RejectedCapacity", lambda sim_workload: sim_workload.router.rejected),
    ("EvictedTTL", lambda sim_workload: sim_workload.router.expired),
    ("EvictedContextCancelled", lambda sim_workload: sim_workload.router.given_up),
)


def _model(sim_workload: SimWorkload) -> _Labels:
    return {"model_name": sim_workload.setup.model, "target_model_name": sim_workload.setup.model}


def _queue(sim_workload: SimWorkload) -> _Labels:
    return {"fairness_id": "default", "priority": "0", "inference_pool": sim_workload.setup.deployment.name}


def _family(names: Sequence[str], kind: str, text: str, rows: Sequence[tuple[_Labels, float]]) -> list[str]:
    return [
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        + "".join(f"{name}{labels(dict(sorted(where.items())))} {number(value)}\n" for where, value in rows)
        for name in names
    ]
