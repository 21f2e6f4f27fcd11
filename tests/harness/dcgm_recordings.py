"""Pages of DCGM exporters, one pod for each thing that its GPU may do, written from the definitions of DCGM's fields.

They are no recordings of GPUs: ratios are those that the roofline gives for decode and prefill, and labels, units and
marks of unread fields are those of dcgm-exporter 4.5 and DCGM 4.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.diagnosis import GpuFacts, classify
from autoscaler.core.table.columns import replace
from tests.adapters.prometheus.fleets import fleet_of

GPU = {"modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node-1", "container": "vllm", "namespace": "llm"}
MIG = {"GPU_I_ID": "2", "GPU_I_PROFILE": "3g.40gb"}
LOADED = {"DCGM_FI_DEV_FB_USED": 72_000, "DCGM_FI_DEV_FB_FREE": 8_000}
TX, RX = "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"
NVLINK_TX, NVLINK_RX = "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"


class Shown(NamedTuple):
    """What DCGM shows of one pod, what its engine says, and what both together mean."""

    diagnosis: Diagnosis
    fields: dict[str, float]  # by metric
    running: float = 0.0
    waiting: float = 0.0
    deferred: float = 0.0
    stuck: bool = False
    weak: bool = False
    labels: Mapping[str, str] = MappingProxyType({})
    unsliced: Mapping[str, float] = MappingProxyType({})  # metrics without the labels of a MIG instance


def activity(sm: float, tensor: float, dram: float) -> dict[str, float]:
    return {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": sm,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": tensor,
        "DCGM_FI_PROF_DRAM_ACTIVE": dram,
    }


def renamed(sm: float, tensor: float, dram: float) -> dict[str, float]:
    return {
        "DCGM_FI_PROF_SM_UTIL_RATIO": sm,
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO": tensor,
        "DCGM_FI_PROF_DRAM_UTIL_RATIO": dram,
    }


UNREAD = dict.fromkeys(activity(0, 0, 0), 140737488355328.0) | {TX: 9223372036854775794.0}

SHOWN: dict[str, Shown] = {
    "idle": Shown(Diagnosis.IDLE_AND_LOADED, LOADED | activity(0.0, 0.0, 0.0005) | {"DCGM_FI_DEV_GPU_UTIL": 0}),
    "idle-renamed": Shown(Diagnosis.IDLE_AND_LOADED, {"DCGM_FI_DEV_FB_USED_RATIO": 0.91} | renamed(0.0, 0.0, 0.002)),
    "decode": Shown(Diagnosis.MEMORY_BOUND_DECODE, LOADED | activity(0.92, 0.08, 0.71), running=24),
    "decode-renamed": Shown(Diagnosis.MEMORY_BOUND_DECODE, LOADED | renamed(0.7, 0.02, 0.35), running=1),
    "prefill": Shown(Diagnosis.COMPUTE_BOUND_PREFILL, LOADED | activity(0.97, 0.52, 0.35), running=3, waiting=5),
    "pcie": Shown(Diagnosis.COMMUNICATION_BOUND, LOADED | activity(0.85, 0.06, 0.12) | {TX: 11e9, RX: 2e9}, running=16),
    "nvlink": Shown(
        Diagnosis.COMMUNICATION_BOUND,
        LOADED | activity(0.9, 0.1, 0.2) | {TX: 1e8, NVLINK_TX: 3e9, NVLINK_RX: 140e9},
        running=16,
    ),
    "cpu": Shown(Diagnosis.STARVED, LOADED | activity(0.08, 0.01, 0.05) | {TX: 1e8, RX: 2e8}, running=12),
    "network": Shown(Diagnosis.STARVED, LOADED | activity(0.02, 0.0, 0.004) | {RX: 4e8}, deferred=6),
    "stuck": Shown(Diagnosis.STUCK, LOADED | activity(1.0, 0.0, 0.0), running=4, stuck=True),
    "stuck-unseen": Shown(Diagnosis.STUCK, {}, running=4, stuck=True),
    "long-prompt": Shown(Diagnosis.COUNTERS_STAND, LOADED | activity(1.0, 0.6, 0.3), running=1, stuck=True),
    "busy": Shown(Diagnosis.BUSY, LOADED | activity(0.98, 0.45, 0.75), running=64),
    "few": Shown(Diagnosis.FEW_REQUESTS, LOADED | activity(0.05, 0.004, 0.02), running=1),
    "neighbour": Shown(Diagnosis.OTHERS_WORK, LOADED | activity(0.6, 0.1, 0.4)),
    "empty": Shown(
        Diagnosis.NOT_LOADED, {"DCGM_FI_DEV_FB_USED": 600, "DCGM_FI_DEV_FB_FREE": 79_400} | activity(0, 0, 0)
    ),
    "no-framebuffer": Shown(Diagnosis.NO_FRAMEBUFFER, activity(0.0, 0.0, 0.0)),
    "weak-idle": Shown(Diagnosis.IDLE_AND_LOADED, LOADED | {"DCGM_FI_DEV_GPU_UTIL": 0}, weak=True),
    "weak-busy": Shown(Diagnosis.BUSY, LOADED | {"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.7}, running=9, weak=True),
    "weak-starved": Shown(Diagnosis.STARVED, LOADED | {"DCGM_FI_DEV_GPU_UTIL": 0}, running=9, waiting=2, weak=True),
    "weak-unread": Shown(Diagnosis.NO_ACTIVITY, LOADED | {"DCGM_FI_DEV_GPU_UTIL": 2147483632}),
    "unread": Shown(Diagnosis.NO_ACTIVITY, LOADED | UNREAD, running=3),
    "unread-link": Shown(Diagnosis.BUSY, LOADED | activity(0.85, 0.06, 0.12) | {TX: 9223372036854775794.0}, running=16),
    "mig-util": Shown(Diagnosis.NO_ACTIVITY, LOADED | {"DCGM_FI_DEV_GPU_UTIL": 0}, labels=MIG),
    "mig-parent": Shown(Diagnosis.NO_ACTIVITY, LOADED, labels=MIG, unsliced={"DCGM_FI_DEV_GPU_UTIL": 0}),
    "mig-links": Shown(
        Diagnosis.BUSY, LOADED | activity(0.85, 0.06, 0.12), running=16, labels=MIG, unsliced={TX: 11e9, RX: 11e9}
    ),
    "mig-idle": Shown(Diagnosis.IDLE_AND_LOADED, LOADED | activity(0.0, 0.0, 0.0), labels=MIG),
    "none": Shown(Diagnosis.NO_GPU_READING, {}, running=3),
}


def page() -> str:
    """Return one page with all pods, as an exporter writes it for a scrape that honors its labels."""
    lines = []
    for number, (name, shown) in enumerate(SHOWN.items()):
        where = {**GPU, "gpu": str(number), "UUID": f"GPU-{number}", "pod": f"{name}-0"}
        for fields, labels in ((shown.fields, {**where, **shown.labels}), (shown.unsliced, where)):
            text = ",".join(f'{label}="{value}"' for label, value in labels.items())
            lines += [f"{metric}{{{text}}} {value:g}" for metric, value in fields.items()]
    return "\n".join(lines) + "\n"


def recorded_fleet() -> Fleet:
    """Return a workload with one pod for each recording."""
    return fleet_of({f"llm/{name}": [f"{name}-0"] for name in SHOWN})


def diagnoses(read: PodSamples, now_s: float) -> dict[str, tuple[str, bool]]:
    """Diagnose each pod from what was read of DCGM, and what its engine says: its diagnosis, and whether it is weak."""
    engine = {
        name: np.array([getattr(shown, name) for shown in SHOWN.values()])
        for name in ("running", "waiting", "deferred")
    }
    facts = GpuFacts(now_s, replace(read, **engine), np.array([shown.stuck for shown in SHOWN.values()]))
    found = classify(facts).tolist()
    return {
        name: (Diagnosis(each).published, bool(weak)) for name, each, weak in zip(SHOWN, found, facts.weak, strict=True)
    }


def expected_diagnoses() -> dict[str, tuple[str, bool]]:
    return {name: (shown.diagnosis.published, shown.weak) for name, shown in SHOWN.items()}
