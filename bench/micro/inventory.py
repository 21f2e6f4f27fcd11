"""Measure the inventory of nodes: memory, and the time of one watch event, with 2,000 nodes and 20,000 pods.

    python bench/micro/inventory.py [--nodes 2000] [--pods 20000] [--events 20000] [--claims] [--weights] [--json]

Nodes have eight GPUs and 40 labels, and pods are those of 500 Deployments and of others. The figures are CPU seconds of
this process, so that other work on the machine does not count:

* `event_median`, `event_p99`: from the bytes of a watch event to the stores, nine pods for each node.
* `usage`: what pods hold and which replicas fit, once per tick in which a pod changed.
* `layout`: the groups and pools, after a node or a template changed.
* `peak_rss`: the largest resident memory, with Python and all imports.

With `--claims` a driver publishes the GPUs, and pods get them by ResourceClaims (DRA). Each GPU can be cut into ten
slices. Half of the events are then those of claims and slices.

With `--weights` an agent on each node reports 16 models, of which one changes with each event of the node. `weights` is
the time of their columns, once per tick in which a pod changed.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api import device_objects, node_objects, pod_objects
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.adapters.kubernetes.inventory.devices.store import DeviceStore
from autoscaler.adapters.kubernetes.inventory.nodes import NodeStore
from autoscaler.adapters.kubernetes.inventory.pools import Layout, lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import Usage, count_usage
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.adapters.kubernetes.pods.template import read_template
from autoscaler.adapters.kubernetes.weights.view import WeightsView
from autoscaler.config.weights.report import ANNOTATION, ModelReport, Report, State, encode, labels
from autoscaler.config.weights.source import parse
from autoscaler.core.model.fleet import Workload, WorkloadRef
from bench.micro.result import show

GPU = "nvidia.com/gpu"
PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-L4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S")
CUTS = (("", 0, 8), *(("1g.10gb", place, 1) for place in range(8)), ("3g.40gb", 0, 4), ("3g.40gb", 4, 4))
PARTS = 3  # slices of a node
TARGETS = 500
TARGET_EVENT_S = 0.001
TARGET_RSS_MIB = 150.0
POD, NODE = msgspec.json.Decoder(pod_objects.PodObject), msgspec.json.Decoder(node_objects.NodeObject)
SLICE, CLAIM = msgspec.json.Decoder(device_objects.ResourceSlice), msgspec.json.Decoder(device_objects.ResourceClaim)
CLASS, TEMPLATE = (
    msgspec.json.Decoder(device_objects.DeviceClass),
    msgspec.json.Decoder(device_objects.ResourceClaimTemplate),
)
DRIVER = "gpu.nvidia.com"
CHOICE = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
DEVICE_CLASS = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": CHOICE}}]}}
ONE = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}}


MODELS = 16  # that a node holds


def source_of(target: int) -> str:
    return f"hf://organisation/model-{target:04d}@main"


def report_of(number: int, version: int) -> Report:
    """Return what a node holds; one of its models changes with the version."""
    models = {}
    for place in range(MODELS):
        source = source_of((number * 37 + place * 61 + (version if place == 0 else 0)) % TARGETS)
        models[parse(source).key] = ModelReport(source, State.READY, 16 * 10**9)
    return Report(models, "1.0", 10**12, 10**11)


def node(number: int, version: int, gpus: int = 8, with_weights: bool = False) -> bytes:
    node_labels = {f"example.com/label-{index}": f"value-{index}-{number % 7}" for index in range(34)}
    node_labels |= {
        "nvidia.com/gpu.product": PRODUCTS[number % 4],
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gfd.timestamp": str(version),
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        "karpenter.sh/capacity-type": ("spot", "on-demand")[number % 2],
        "kubernetes.io/hostname": f"node-{number:05d}",
    }
    capacity = {GPU: str(gpus), "cpu": "192", "memory": "2Ti", "pods": "110"}
    status = {
        "allocatable": capacity,
        "capacity": capacity,
        "conditions": [{"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}],
        "images": [{"names": [f"registry/image-{index}:v1"], "sizeBytes": 10**9} for index in range(50)],
    }
    annotations = {f"example.com/annotation-{index}": "x" * 60 for index in range(10)}
    if with_weights:
        report = report_of(number, version)
        node_labels |= labels(report)
        annotations[ANNOTATION] = encode(report)
    name = f"node-{number:05d}"
    metadata = {"name": name, "labels": node_labels, "annotations": annotations, "resourceVersion": str(version)}
    return json.dumps({"metadata": metadata, "spec": {}, "status": status}).encode()


def spec(number: int, with_claims: bool = False) -> dict[str, Any]:
    requests = {"cpu": "8", "memory": "64Gi"} if number % 10 < 7 else {"cpu": "100m", "memory": "128Mi"}
    if number % 10 < 7 and not with_claims:
        requests[GPU] = "1"
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.10",
        "args": ["--model", f"model-{number % TARGETS}", "--port", "8000"],
        "env": [{"name": f"NAME_{index}", "value": "x" * 20} for index in range(20)],
        "resources": {"limits": requests},
    }
    product = {"nvidia.com/gpu.product": PRODUCTS[number % TARGETS % 4]}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}] if with_claims and number % 10 < 7 else []
    containers = [container, {"name": "proxy", "image": "proxy"}]
    return {"containers": containers, "nodeSelector": product, "resourceClaims": claims}


def pod(number: int, nodes: int, version: int, with_claims: bool = False) -> bytes:
    owner = {"kind": "ReplicaSet", "name": "x", "uid": f"uid-{number % TARGETS}", "controller": True}
    metadata = {
        "name": f"pod-{number:06d}",
        "namespace": f"team-{number % 20}",
        "uid": f"pod-uid-{number}",
        "labels": {"app": f"app-{number % TARGETS}", "pod-template-hash": f"{number % TARGETS:x}"},
        "ownerReferences": [owner] if number % 10 < 7 else [],
        "resourceVersion": str(version),
    }
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": ("True", "False")[version % 2]}],
    }
    body = spec(number, with_claims) | {"nodeName": f"node-{number % nodes:05d}"}
    return json.dumps({"metadata": metadata, "spec": body, "status": status}).encode()


def slice_of(number: int, part: int, version: int) -> bytes:
    """Return a part of the devices of a node: the counters of its GPUs, or half of the GPUs with their slices.

    The API server allows 64 devices with counters in one slice, and counters in slices of their own.
    """
    name = f"node-{number:05d}"
    spec: dict[str, Any] = {"driver": DRIVER, "nodeName": name}
    spec["pool"] = {"name": name, "generation": 1, "resourceSliceCount": PARTS}
    if part:
        product = PRODUCTS[number % 4].replace("-", " ")
        spec["devices"] = [
            device(f"{number}", gpu, product, *cut) for gpu in range(4 * part - 4, 4 * part) for cut in CUTS
        ]
    else:
        sets = [{f"memory-{place}": {"value": "1"} for place in range(8)} for _ in range(8)]
        spec["sharedCounters"] = [{"name": f"gpu-{gpu}", "counters": each} for gpu, each in enumerate(sets)]
    metadata = {"name": f"{name}-{part}", "resourceVersion": str(version)}
    return json.dumps({"metadata": metadata, "spec": spec}).encode()


def device(node_name: str, gpu: int, product: str, profile: str, first: int, length: int) -> dict[str, Any]:
    """Return a GPU, or a slice of it."""
    name = f"gpu-{gpu}-{profile}-{first}"
    attributes = {
        "type": {"string": "mig" if profile else "gpu"},
        "productName": {"string": product},
        "uuid": {"string": f"{node_name}-{name}"},
        **({"profile": {"string": profile}} if profile else {}),
    }
    takes = {f"memory-{place}": {"value": "1"} for place in range(first, first + length)}
    return {
        "name": name if profile else f"gpu-{gpu}",
        "attributes": attributes,
        "capacity": {"memory": {"value": f"{10 * length}Gi"}},
        "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": takes}],
    }


def claim(number: int, nodes: int, version: int) -> bytes:
    """Return the claim of a pod, which holds a GPU in every other version."""
    result = {"driver": DRIVER, "pool": f"node-{number % nodes:05d}", "device": f"gpu-{number // nodes % 8}"}
    users = [{"resource": "pods", "name": f"pod-{number:06d}"}]
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users} if version % 2 == 0 else {}
    metadata = {"name": f"claim-{number:06d}", "namespace": f"team-{number % 20}", "resourceVersion": str(version)}
    return json.dumps({"metadata": metadata, "status": status}).encode()


def changes(nodes: int, pods: int, count: int, with_claims: bool, with_weights: bool) -> Iterator[tuple[Any, bytes]]:
    """Yield changes with their kinds: nine of pods, or of pods and their claims, for each of a node."""
    for number in range(count):
        each = number * 7919
        if number % 10:
            if with_claims and number % 2:
                yield CLAIM, claim(each % pods, nodes, number)
            else:
                yield POD, pod(each % pods, nodes, number, with_claims)
        elif with_claims and number % 20:
            yield SLICE, slice_of(each % nodes, number // 10 % PARTS, number)
        else:
            yield NODE, node(each % nodes, number, 0 if with_claims else 8, with_weights)


def main() -> int:  # noqa: PLR0915
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--claims", action="store_true", help="GPUs that a driver publishes, and pods get by claims")
    parser.add_argument("--weights", action="store_true", help="nodes report the weights that they hold")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()

    clock, with_claims, with_weights = SystemClock(), given.claims, given.weights
    weights = WeightsView(clock)
    devices = DeviceStore(clock)
    store, pod_store = NodeStore(clock, devices.has_devices), PodStore(clock)
    put = {
        NODE: lambda seen: (store.put(seen), weights.reports.put(seen)),
        POD: pod_store.put,
        SLICE: devices.slices.put,
        CLAIM: devices.claims.put,
    }
    if with_claims:
        devices.classes.put(decode(CLASS, json.dumps(DEVICE_CLASS).encode()))
        for number in range(20):
            metadata = {"name": "one", "namespace": f"team-{number}"}
            devices.templates.put(decode(TEMPLATE, json.dumps({"metadata": metadata, "spec": ONE}).encode()))
        for number in range(given.nodes):
            for part in range(PARTS):
                devices.slices.put(decode(SLICE, slice_of(number, part, 0)))
        for number in range(given.pods):
            if number % 10 < 7:
                devices.claims.put(decode(CLAIM, claim(number, given.nodes, 0)))
    for number in range(given.nodes):
        put[NODE](decode(NODE, node(number, 0, 0 if with_claims else 8, with_weights)))
    for number in range(TARGETS):
        pod_store.set_target((f"team-{number % 20}", f"uid-{number}"), number)
    for number in range(given.pods):
        pod_store.put(decode(POD, pod(number, given.nodes, 0, with_claims)))
    templates = msgspec.json.Decoder(pod_objects.PodSpec)
    facts = [read_template(templates.decode(json.dumps(spec(number, with_claims)))) for number in range(TARGETS)]
    workloads = [(f"team-{number % 20}", each) for number, each in enumerate(facts)]
    ids = np.arange(TARGETS)

    def lay_out() -> Layout:
        settled = devices.settle(workloads)
        return lay_out_pools(devices.add_to(store.nodes), settled)

    def count(layout: Layout) -> Usage:
        held = devices.add_held(pod_store.held(), pod_store.holder_of, pod_store.holdings.priority)
        return count_usage(layout, held, ids)

    known = tuple(
        Workload(WorkloadRef(namespace, "x"), weights=source_of(number) if with_weights else "")
        for number, (namespace, _) in enumerate(workloads)
    )

    layout = lay_out()
    count(layout)
    pods = pod_store.rows(ids)

    gc.collect()
    taken = []
    for decoder, text in changes(given.nodes, given.pods, given.events, with_claims, with_weights):
        begin_s = time.process_time()
        put[decoder](decode(decoder, text))
        taken.append(time.process_time() - begin_s)

    begin_s = time.process_time()
    usage = count(layout)
    usage_s = time.process_time() - begin_s
    begin_s = time.process_time()
    layout = lay_out()
    layout_s = time.process_time() - begin_s
    begin_s = time.process_time()
    weights.columns(known, np.zeros(TARGETS, dtype=bool), layout, usage.held, pods, pods.target_id)
    weights_s = time.process_time() - begin_s

    found = {
        "nodes": given.nodes,
        "pods": given.pods,
        "claims": with_claims,
        "groups": len(usage.groups.groups),
        "event_median_s": round(statistics.median(taken), 7),
        "event_p99_s": round(float(np.quantile(taken, 0.99)), 7),
        "usage_s": round(usage_s, 5),
        "layout_s": round(layout_s, 5),
        "weights_s": round(weights_s, 5),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    targets = {"target_event_p99_s": TARGET_EVENT_S, "target_rss_mib": TARGET_RSS_MIB}
    met = found["event_p99_s"] <= TARGET_EVENT_S and found["peak_rss_mib"] <= TARGET_RSS_MIB
    show({**found, **targets, "met": met}, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
