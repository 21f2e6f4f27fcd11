"""Measure the inventory of nodes: memory, and the time of one watch event, with 2,000 nodes and 20,000 pods.

    python bench/micro/inventory.py [--nodes 2000] [--pods 20000] [--events 20000] [--json]

Nodes have eight GPUs and 40 labels, and pods are those of 500 Deployments and of others. The figures are CPU seconds of
this process, so that other work on the machine does not count:

* `event_median`, `event_p99`: from the bytes of a watch event to the stores, nine pods for each node.
* `usage`: what pods hold and which replicas fit, once per tick in which a pod changed.
* `layout`: the groups and pools, after a node or a template changed.
* `peak_rss`: the largest resident memory, with Python and all imports.
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
from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.adapters.kubernetes.inventory.nodes import NodeStore
from autoscaler.adapters.kubernetes.inventory.pools import lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import count_usage
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.adapters.kubernetes.pods.template import read_template
from bench.micro.result import show

GPU = "nvidia.com/gpu"
PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-L4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S")
TARGETS = 500
TARGET_EVENT_S = 0.001
TARGET_RSS_MIB = 150.0
POD, NODE = msgspec.json.Decoder(objects.Pod), msgspec.json.Decoder(objects.Node)


def node(number: int, version: int) -> bytes:
    labels = {f"example.com/label-{index}": f"value-{index}-{number % 7}" for index in range(34)}
    labels |= {
        "nvidia.com/gpu.product": PRODUCTS[number % 4],
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gfd.timestamp": str(version),
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        "karpenter.sh/capacity-type": ("spot", "on-demand")[number % 2],
        "kubernetes.io/hostname": f"node-{number:05d}",
    }
    capacity = {GPU: "8", "cpu": "192", "memory": "2Ti", "pods": "110"}
    status = {
        "allocatable": capacity,
        "capacity": capacity,
        "conditions": [{"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}],
        "images": [{"names": [f"registry/image-{index}:v1"], "sizeBytes": 10**9} for index in range(50)],
    }
    metadata = {"name": f"node-{number:05d}", "labels": labels, "resourceVersion": str(version)}
    return json.dumps({"metadata": metadata, "spec": {}, "status": status}).encode()


def spec(number: int) -> dict[str, Any]:
    requests = {GPU: "1", "cpu": "8", "memory": "64Gi"} if number % 10 < 7 else {"cpu": "100m", "memory": "128Mi"}
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.10",
        "args": ["--model", f"model-{number % TARGETS}", "--port", "8000"],
        "env": [{"name": f"NAME_{index}", "value": "x" * 20} for index in range(20)],
        "resources": {"limits": requests},
    }
    product = {"nvidia.com/gpu.product": PRODUCTS[number % TARGETS % 4]}
    return {"containers": [container, {"name": "proxy", "image": "proxy"}], "nodeSelector": product}


def pod(number: int, nodes: int, version: int) -> bytes:
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
    body = spec(number) | {"nodeName": f"node-{number % nodes:05d}"}
    return json.dumps({"metadata": metadata, "spec": body, "status": status}).encode()


def events(nodes: int, pods: int, count: int) -> Iterator[tuple[bytes, bool]]:
    """Yield changes, nine of pods for each of a node."""
    for number in range(count):
        if number % 10:
            yield pod(number * 7919 % pods, nodes, number), True
        else:
            yield node(number * 7919 % nodes, number), False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()

    clock = SystemClock()
    store, pod_store = NodeStore(clock), PodStore(clock)
    for number in range(given.nodes):
        store.put(decode(NODE, node(number, 0)))
    for number in range(TARGETS):
        pod_store.set_target((f"team-{number % 20}", f"uid-{number}"), number)
    for number in range(given.pods):
        pod_store.put(decode(POD, pod(number, given.nodes, 0)))
    templates = msgspec.json.Decoder(objects.PodSpec)
    facts = [read_template(templates.decode(json.dumps(spec(number)))) for number in range(TARGETS)]
    ids = np.arange(TARGETS)
    layout = lay_out_pools(store.nodes, facts)
    count_usage(layout, pod_store.held(), ids, others_known=True)

    gc.collect()
    taken = []
    for text, is_pod in events(given.nodes, given.pods, given.events):
        begin_s = time.process_time()
        if is_pod:
            pod_store.put(decode(POD, text))
        else:
            store.put(decode(NODE, text))
        taken.append(time.process_time() - begin_s)

    begin_s = time.process_time()
    usage = count_usage(layout, pod_store.held(), ids, others_known=True)
    usage_s = time.process_time() - begin_s
    begin_s = time.process_time()
    layout = lay_out_pools(store.nodes, facts)
    layout_s = time.process_time() - begin_s

    found = {
        "nodes": given.nodes,
        "pods": given.pods,
        "groups": len(usage.groups.groups),
        "event_median_s": round(statistics.median(taken), 7),
        "event_p99_s": round(float(np.quantile(taken, 0.99)), 7),
        "usage_s": round(usage_s, 5),
        "layout_s": round(layout_s, 5),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    targets = {"target_event_p99_s": TARGET_EVENT_S, "target_rss_mib": TARGET_RSS_MIB}
    met = found["event_p99_s"] <= TARGET_EVENT_S and found["peak_rss_mib"] <= TARGET_RSS_MIB
    show({**found, **targets, "met": met}, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
