"""Other people's rules for the number of replicas, each from its documented formula and with its own timing.

`docs/reference/baselines.md` has the formulas, where they are written down, and what was fixed to be fair to them.
"""

from collections.abc import Mapping

from autoscaler.sim.study.baselines.aibrix import AIBRIX_APA
from autoscaler.sim.study.baselines.base import Axis, Baseline, Params
from autoscaler.sim.study.baselines.dynamo import DYNAMO_LOAD, DYNAMO_THROUGHPUT
from autoscaler.sim.study.baselines.hpa import HPA_INFLIGHT
from autoscaler.sim.study.baselines.keda import KEDA_QUEUE, KEDA_RPS
from autoscaler.sim.study.baselines.knative import KNATIVE_KPA
from autoscaler.sim.study.baselines.llmd import LLMD_SLO
from autoscaler.sim.study.baselines.ray_serve import RAY_SERVE
from autoscaler.sim.study.baselines.skyserve import SKYSERVE
from autoscaler.sim.study.baselines.static import STATIC
from autoscaler.sim.study.baselines.wva import WVA_SATURATION, WVA_THROUGHPUT

BASELINES: Mapping[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        KEDA_QUEUE,
        KEDA_RPS,
        HPA_INFLIGHT,
        KNATIVE_KPA,
        LLMD_SLO,
        WVA_SATURATION,
        WVA_THROUGHPUT,
        AIBRIX_APA,
        DYNAMO_THROUGHPUT,
        DYNAMO_LOAD,
        RAY_SERVE,
        SKYSERVE,
        STATIC,
    )
}

__all__ = ["BASELINES", "Axis", "Baseline", "Params"]
