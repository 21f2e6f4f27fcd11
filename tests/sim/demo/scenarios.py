"""A small scenario for tests: one pool, quick starts of known length, one or two workloads."""

from dataclasses import replace

from autoscaler.core.model.fleet import Pool
from autoscaler.sim.demo.cluster import Deployment, PoolSetup
from autoscaler.sim.demo.simulation import Scenario, WorkloadSetup
from autoscaler.sim.demo.summary import DemoObjective
from autoscaler.sim.engine.cold_start import Bandwidth, ColdStart, PhaseDuration
from autoscaler.sim.engine.profiles import H100, Profile
from autoscaler.sim.engine.traffic import Lengths, Shape

PROFILE = Profile(
    step_s=0.01,
    sequence_s=0.0,
    kv_token_s=0.0,
    prompt_token_s=1e-5,
    kv_capacity_tokens=100_000,
    max_num_seqs=8,
    max_model_len=4096,
    weight_bytes=10e9,
)

# Without spread: 0.5 s to bind, 1 s to the container, 10 + 5 + 15 s to the open port, 2 s to ready; 20 s more for the
# weights if the node has not seen them, 40 s for the image, 100 s for a node that sleeps.
START = ColdStart(
    node=PhaseDuration(100.0, 0.0),
    image=PhaseDuration(40.0, 0.0),
    boot=PhaseDuration(10.0, 0.0),
    fetch=Bandwidth(0.5e9, 0.0),
    load=Bandwidth(2e9, 0.0),
    warm_up=PhaseDuration(15.0, 0.0),
    probe=PhaseDuration(2.0, 0.0),
)
WARM_S = 33.5  # start of a pod on a node with image and weights
FETCHED_S = WARM_S + 20.0  # on a node with the image only

SETUP = Deployment("models", "chat", PROFILE, pool=0, replicas=1, cold_start=START, grace_s=60.0)
STEADY = Shape(2.0, Lengths(100, 0.5, 1000), Lengths(100, 0.5, 1000))
CHAT = WorkloadSetup(SETUP, "org/chat", "interactive", STEADY, DemoObjective(1.0, 0.1))


def pool(nodes: int = 1, elastic_nodes: int = 0) -> PoolSetup:
    return PoolSetup(Pool("nvidia.com/gpu", H100.product), H100, 4, nodes, elastic_nodes)


def make_scenario(*workloads: WorkloadSetup, nodes: int = 1, elastic_nodes: int = 0, seed: int = 1) -> Scenario:
    return Scenario(seed, (pool(nodes, elastic_nodes),), workloads or (CHAT,))


def silent(workload: WorkloadSetup = CHAT, **setup: object) -> WorkloadSetup:
    """Return a workload without requests; `setup` replaces fields of its Deployment."""
    return replace(
        workload,
        deployment=replace(workload.deployment, **setup),  # type: ignore[arg-type]
        shape=replace(workload.shape, requests_per_s=0.0),
    )
