"""The metrics page of DCGM exporters, for all simulated nodes at once.

Names and labels as in dcgm-exporter 4.5.3 (`Hostname`, integers bare, six decimals), with SM_ACTIVE added as operators
do. Slices have no GPU_UTIL. Values are collected every 30 s and constant in between. Activity is approximate: decoding
is bound by memory, prefill by the tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.sim.demo.cluster import DemoCluster, DemoMachine, SimPod
from autoscaler.sim.demo.text import labels
from autoscaler.sim.engine.profiles import MEMORY_UTILIZATION, ProfileDevice
from autoscaler.sim.engine.sleep_state import KV_CACHE, WEIGHTS

COLLECT_S = 30.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DRIVER = "580.82.07"
MIB = 1 << 20
IDLE_MIB = 4  # memory of an idle device
ASLEEP_FRACTION = 0.03  # fraction of the memory kept by a sleeping engine

_FAMILIES = (
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)."),
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)."),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)."),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active."),
    ("DCGM_FI_PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned."),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active."),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data."),
)
# Fraction of decode and prefill time during which each unit works.
_ACTIVITY = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (0.98, 0.98),
    "DCGM_FI_PROF_SM_ACTIVE": (0.8, 0.95),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.06, 0.5),
    "DCGM_FI_PROF_DRAM_ACTIVE": (0.75, 0.4),
}


class DcgmExporter:
    """The metrics page, collected from the cluster at intervals."""

    def __init__(self, cluster: DemoCluster) -> None:
        self._cluster = cluster
        self._collected_s = -math.inf
        self._worked_s: dict[int, tuple[float, float]] = {}  # decode and prefill time at the last collection, by pod
        self._page = ""

    def render(self, now_s: float) -> str:
        """Return the page as of the last collection."""
        elapsed_s = now_s - self._collected_s
        if elapsed_s >= COLLECT_S:
            self._page = self._collect(now_s, min(elapsed_s, COLLECT_S))
            self._collected_s = now_s
        return self._page

    def _collect(self, now_s: float, window_s: float) -> str:
        worked = {
            pod.number: (pod.replica.decode_s, pod.replica.prefill_s)
            for pod in self._cluster.pods
            if pod.replica is not None
        }
        lines: dict[str, list[str]] = {name: [] for name, _ in _FAMILIES}
        for node in self._cluster.nodes:
            if node.up_s <= now_s:
                device = self._cluster.pools[node.pool].device
                for index, pod in enumerate(node.holders):
                    where = labels(_labels(node, index, device, pod))
                    for name, value in self._values(device, pod, worked, now_s, window_s):
                        lines[name].append(f"{name}{where} {value}\n")
        self._worked_s = worked
        return "".join(
            f"# HELP {name} {text}\n# TYPE {name} gauge\n{''.join(lines[name])}"
            for name, text in _FAMILIES
            if lines[name]
        )

    def _values(
        self,
        device: ProfileDevice,
        pod: SimPod | None,
        worked: dict[int, tuple[float, float]],
        now_s: float,
        window_s: float,
    ) -> Iterator[tuple[str, str]]:
        decode_s, prefill_s = worked.get(pod.number, (0.0, 0.0)) if pod else (0.0, 0.0)
        decode_before_s, prefill_before_s = self._worked_s.get(pod.number, (0.0, 0.0)) if pod else (0.0, 0.0)
        if decode_s < decode_before_s:  # the engine was restarted
            decode_before_s = prefill_before_s = 0.0
        decoding, prefilling = (decode_s - decode_before_s) / window_s, (prefill_s - prefill_before_s) / window_s
        total = int(device.memory_bytes / MIB)
        used = int(_used_bytes(device, pod, now_s) / MIB) or IDLE_MIB
        if not device.mig_profile:
            yield "DCGM_FI_DEV_GPU_UTIL", str(min(round(100 * (decoding + prefilling)), 100))
        yield "DCGM_FI_DEV_FB_FREE", str(total - used)
        yield "DCGM_FI_DEV_FB_USED", str(used)
        for name, (decode, prefill) in _ACTIVITY.items():
            yield name, f"{min(decode * decoding + prefill * prefilling, 1.0):.6f}"


def _used_bytes(device: ProfileDevice, pod: SimPod | None, now_s: float) -> float:
    if pod is None or not pod.started_s <= now_s:
        return 0.0
    weights = pod.deployment.profile.weight_bytes / pod.deployment.devices
    if pod.replica is not None:
        released = pod.replica.sleep_state.released
        asleep = device.memory_bytes * ASLEEP_FRACTION + (0.0 if WEIGHTS in released else weights)
        return asleep if KV_CACHE in released else device.memory_bytes * MEMORY_UTILIZATION
    loading_s = max(pod.serving_s - pod.started_s, 1e-9)
    return min((now_s - pod.started_s) / loading_s, 1.0) * weights


def _labels(node: DemoMachine, index: int, device: ProfileDevice, pod: SimPod | None) -> dict[str, str]:
    gpu, instance = divmod(index, 2) if device.mig_profile else (index, 0)
    number = sum(map(ord, node.name)) * 16 + gpu  # any number that distinguishes the GPUs
    found = {
        "gpu": str(gpu),
        "UUID": f"GPU-00000000-0000-4000-8000-{number:012x}",
        "pci_bus_id": f"00000000:{0x1B + gpu:02X}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": device.product.replace("-", " "),
    }
    if device.mig_profile:
        found |= {"GPU_I_PROFILE": device.mig_profile, "GPU_I_ID": str(instance + 1)}
    found |= {"Hostname": node.name, "DCGM_FI_DRIVER_VERSION": DRIVER}
    if pod is not None:
        found |= {"container": "vllm", "namespace": pod.deployment.namespace, "pod": pod.name}
    return found
