"""Whether the model of a workload fits on a device of the node groups that admit it.

Nothing is read for this: it counts with the engine's options and with the weights that the workload states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.adapters.kubernetes.inventory.pools import Layout
from autoscaler.adapters.kubernetes.pods.template import Facts
from autoscaler.catalog.devices import is_mig
from autoscaler.catalog.engines import DEFAULT_ENGINE
from autoscaler.config.check.engine_memory import STATED, ModelFiles, memory_of, needs_of, parallel_size
from autoscaler.config.model_memory import GIB, FitVerdict, Range, judge

MIB = float(1 << 20)
MAX_MIB = 1 << 21  # as for the framebuffer; GPUs of 2026 have up to 0.3 million


def misfit(facts: Facts, weights_gb: float, layout: Layout, row: int) -> str:
    """Return why the model of a workload fits on no device that it may get; "": it may fit.

    weights_gb: stated; 0: unknown. row: of the workload.
    """
    options = dict(facts.memory)
    tensor = parallel_size(options)
    if not weights_gb and tensor < 2:
        return ""
    devices = list(_devices(facts, layout, row))
    if tensor > 1 and devices and all(is_slice for is_slice, _ in devices):
        return (
            f"the model does not fit: --tensor-parallel-size {tensor}, but slices of a GPU cannot work together; "
            "allowed: 1, or whole GPUs"
        )
    files = ModelFiles(Range(weights_gb * 1e9, weights_gb * 1e9), source=STATED)
    load = needs_of(options, files, facts.gpus, is_vllm=facts.engine in ("", DEFAULT_ENGINE))
    fits = [judge(load, memory) for _, memory in devices]
    if not fits or any(fit.verdict is not FitVerdict.DOES_NOT_FIT for fit in fits):
        return ""
    largest = max(range(len(devices)), key=lambda place: devices[place][1].most)
    return f"the model does not fit: {fits[largest].sentence}"


def _devices(facts: Facts, layout: Layout, row: int) -> Iterator[tuple[bool, Range]]:
    """Yield the devices that a workload may get: whether it is a slice, and its bytes."""
    template, pool = layout.template[row], layout.rows[row]
    if template < 0:
        return
    found = False
    for group, admitted in zip(layout.groups, layout.admitted[template].tolist(), strict=True):
        if not admitted:
            continue
        found = True
        key = group.key
        sharing = dict(zip(dict(key.devices), key.sharing, strict=True)).get(facts.resource, "")
        named = memory_of(facts.resource, key.product, sharing)
        stated = _bytes(key.memory)
        # In the strategy mixed the label is about the whole GPU.
        is_whole = math.isnan(stated) or "mig-" in facts.resource
        is_slice = is_mig(facts.resource, key.product)
        yield is_slice, named if is_whole else Range(min(named.least, stated), stated)
    if not found and pool >= 0:
        product = layout.pools[pool].product
        yield is_mig(facts.resource, product), memory_of(facts.resource, product)


def _bytes(label: str) -> float:
    """Return the memory that a label states in MiB; NaN: it states none that a device can have."""
    plain = label.isascii() and label.isdigit() and len(label) <= len(str(MAX_MIB))
    mib = int(label) if plain else 0
    return mib * MIB if GIB / MIB <= mib <= MAX_MIB else math.nan
