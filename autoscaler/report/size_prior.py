"""The step time that is assumed where no engine shows one: reading the weights of the model from the GPUs' memory."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from autoscaler.catalog.devices import find_device
from autoscaler.catalog.model_shapes import bytes_per_parameter, find_shape
from autoscaler.core.table.columns import FloatColumn

USUAL_GAP_S = 0.008
"""Idle gap of an 8B model of 16 bits on one GPU of 3 TB/s: reading takes two thirds of it."""

USUAL_BYTES, USUAL_BANDWIDTH_GB_S = 16e9, 3000.0
LEAST_GAP_S, MOST_GAP_S = 0.002, 0.2
"""Launching a step takes 2 ms on any model, and nobody serves with steps beyond the other."""

BANDWIDTH_GB_S = {
    **{"T4": 320, "V100": 900, "V100-16GB": 900, "V100-32GB": 900, "A10": 600, "A10G": 600, "A30": 933},
    **{"L4": 300, "L40S": 864, "A100": 1555, "A100-40GB": 1555, "A100-80GB": 2039, "RTX-PRO-6000": 1597},
    **{"H100": 3350, "H100-80GB": 3350, "H100-NVL": 3938, "H20": 4000, "H200": 4800, "GH200": 4000},
    **{"GH200-144GB": 4900, "B200": 8000, "GB200": 8000, "B300": 8000, "GB300": 8000},
}
"""GB/s of memory by the name of the device, from the vendor's data sheets; of several versions the usual one."""

_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d{1,2})x)?(\d{1,4}(?:\.\d{1,3})?)(b|m)(?![a-z0-9])")
_ACTIVE = re.compile(r"-a(\d{1,3}(?:\.\d{1,3})?)b(?![a-z0-9])")
"""Active parameters of a mixture of experts: those that a nearly idle step reads."""


def parameters_of(model: str) -> float:
    """Return the parameters that a step of a model reads, by its name; NaN: the name does not tell."""
    name = model.rpartition("/")[2].lower()[:200]
    if active := _ACTIVE.search(name):
        return float(active[1]) * 1e9
    if (shape := find_shape(model)) is not None:
        return shape.parameters
    if size := _SIZE.search(name):
        return int(size[1] or 1) * float(size[2]) * (1e9 if size[3] == "b" else 1e6)
    return math.nan


def assume_gap_s(models: Sequence[str], gpus: FloatColumn, products: Sequence[str]) -> FloatColumn:
    """Return the idle gap to assume of each service; float64[W].

    models: names, "": unknown. gpus: float64[W], of a replica. products: of its GPUs, "": unknown. A model whose name
    tells no size has 8B parameters on each GPU.
    """
    gaps = []
    for model, count, product in zip(models, gpus.tolist(), products, strict=True):
        device = find_device(product) if product else None
        bandwidth = BANDWIDTH_GB_S.get(device.name if device is not None else "", USUAL_BANDWIDTH_GB_S)
        parameters = parameters_of(model)
        size = USUAL_BYTES if math.isnan(parameters) else parameters * _bytes_each(model) / max(count, 1.0)
        gaps.append(USUAL_GAP_S * size / USUAL_BYTES * USUAL_BANDWIDTH_GB_S / bandwidth)
    return np.clip(np.array(gaps, np.float64), LEAST_GAP_S, MOST_GAP_S)


def _bytes_each(model: str) -> float:
    known = bytes_per_parameter(model)
    return 2.0 if known is None else sum(known) / 2
