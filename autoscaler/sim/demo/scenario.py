"""The scenario of the demo: six workloads under five policies, with too few GPUs at the peak."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from autoscaler.config.policy.parse import load, shipped
from autoscaler.config.policy.schema import Policy
from autoscaler.core.model.fleet import Pool
from autoscaler.sim.demo.cluster import Deployment, PoolSetup
from autoscaler.sim.demo.simulation import Scenario, WorkloadSetup
from autoscaler.sim.demo.summary import DemoObjective
from autoscaler.sim.engine.profiles import H100, H100_3G, LLAMA_8B, LLAMA_70B, QWEN_14B, compute_profile
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape

POLICIES = Path(__file__).parent / "policies"  # loaded in addition to the shipped ones

GPU, SLICE = 0, 1
POOLS = (
    PoolSetup(Pool("nvidia.com/gpu", H100.product), H100, devices_per_node=8, nodes=2, elastic_nodes=1),
    PoolSetup(Pool("nvidia.com/mig-3g.40gb", H100_3G.product), H100_3G, devices_per_node=8, nodes=1),
)

NAMESPACE = "models"
# Traffic at each full hour, in percent of the peak.
OFFICE_DAY = tuple(
    percent / 100
    for percent in (15, 10, 8, 8, 8, 10, 20, 35, 60, 85, 100, 100, 80, 85, 100, 95, 90, 80, 65, 60, 55, 45, 35, 25)
)
EVENING_DAY = tuple(
    percent / 100
    for percent in (40, 25, 15, 10, 10, 15, 25, 40, 55, 65, 70, 75, 80, 75, 70, 70, 75, 80, 90, 100, 100, 95, 80, 60)
)

# The first is over before a new replica could serve; the second is long enough to need one.
NOISE = Bursts(per_hour=6, median_s=12, sigma=0.4, height=1.8)
RUSH = Bursts(per_hour=0.7, median_s=480, sigma=0.4, height=1.7)


def demo_scenario(seed: int) -> Scenario:
    """Make the scenario of the demo. A seed determines its traffic; objectives are those of the policies."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be 0 or more")
    policies = load((shipped(), POLICIES)).policies
    made = (_chat(), _assistant(), _code(), _summaries(), _playground(), _helpdesk())
    return Scenario(seed, POOLS, tuple(_promised(workload, policies[workload.policy]) for workload in made))


def _promised(workload: WorkloadSetup, policy: Policy) -> WorkloadSetup:
    promise = policy.spec.objective
    ttft_s, itl_s = (math.nan if value is None else value for value in (promise.ttft, promise.itl))
    return replace(workload, objective=DemoObjective(ttft_s, itl_s))


def _chat() -> WorkloadSetup:
    return WorkloadSetup(
        Deployment(
            NAMESPACE,
            "chat-8b",
            compute_profile(LLAMA_8B, H100, max_num_seqs=24),
            GPU,
            replicas=3,
            crash_every_s=40 * 3600.0,
        ),
        model="meta-llama/Llama-3.1-8B-Instruct",
        policy="realtime",
        shape=Shape(19.0, Lengths(300, 0.8, 2500), Lengths(300, 0.6, 1500), EVENING_DAY, (NOISE, RUSH)),
        patience_s=20.0,
    )


def _assistant() -> WorkloadSetup:
    return WorkloadSetup(
        Deployment(
            NAMESPACE,
            "assistant-70b",
            compute_profile(LLAMA_70B, H100, 4, max_num_seqs=32),
            GPU,
            devices=4,
            replicas=2,
        ),
        model="meta-llama/Llama-3.3-70B-Instruct",
        policy="interactive",
        shape=Shape(4.2, Lengths(700, 0.9, 5000), Lengths(350, 0.6, 2000), OFFICE_DAY, (NOISE, RUSH)),
        overrides=(("replicas.max", "3"),),
    )


def _code() -> WorkloadSetup:
    return WorkloadSetup(
        Deployment(
            NAMESPACE,
            "code-8b",
            compute_profile(LLAMA_8B, H100_3G, max_num_seqs=16),
            SLICE,
            replicas=3,
            crash_every_s=60 * 3600.0,
        ),
        model="meta-llama/Llama-3.1-8B-code",
        policy="interactive",
        shape=Shape(14.0, Lengths(500, 0.7, 4000), Lengths(150, 0.7, 1000), OFFICE_DAY, (NOISE,)),
        overrides=(("replicas.max", "7"),),
        patience_s=30.0,
    )


def _summaries() -> WorkloadSetup:
    jobs = Bursts(per_hour=1.0, median_s=600, sigma=0.5, height=20.0)
    return WorkloadSetup(
        # A terminating replica may have minutes of queued work, so the grace period is long.
        Deployment(NAMESPACE, "summaries-14b", compute_profile(QWEN_14B, H100, max_num_seqs=16), GPU, grace_s=900.0),
        model="Qwen/Qwen2.5-14B-Instruct",
        policy="batch",
        shape=Shape(0.5, Lengths(2500, 0.4, 6000), Lengths(300, 0.4, 1000), bursts=(jobs,)),
        patience_s=3600.0,
    )


def _playground() -> WorkloadSetup:
    sessions = Bursts(per_hour=1.2, median_s=420, sigma=0.5, height=120.0)
    return WorkloadSetup(
        Deployment(NAMESPACE, "playground-8b", compute_profile(LLAMA_8B, H100_3G, max_num_seqs=16), SLICE, replicas=0),
        model="meta-llama/Llama-3.1-8B-experiment",
        policy="development",
        shape=Shape(
            0.001, Lengths(400, 1.0, 4000), Lengths(300, 0.7, 2000), bursts=(sessions,), silences=((0.0, 6.0),)
        ),
        patience_s=300.0,
    )


def _helpdesk() -> WorkloadSetup:
    return WorkloadSetup(
        Deployment(NAMESPACE, "helpdesk-14b", compute_profile(QWEN_14B, H100, max_num_seqs=24), GPU, replicas=2),
        model="Qwen/Qwen2.5-14B-helpdesk",
        policy="office-hours",
        overrides=(("sleep.replicas", "1"),),  # asleep while nobody asks, awake for the first who come
        shape=Shape(
            9.0, Lengths(600, 0.7, 4000), Lengths(200, 0.6, 1200), bursts=(NOISE,), silences=((0.0, 8.5), (18.0, 24.0))
        ),
    )
