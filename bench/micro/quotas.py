"""Measure quotas: the time of one watch event, and of a tick, with 10,000 workloads under 200 quotas of each kind.

    python bench/micro/quotas.py [--workloads 10000] [--quotas 200] [--events 2000] [--json]

Each namespace has a ResourceQuota and a queue of Kueue with four flavors. Twenty cohorts share the queues. Figures are
CPU seconds of this process, so that other work on the machine does not count:

* `event_median`, `event_p99`: from the bytes of a watch event to the store, half of them of ResourceQuotas.
* `layout`: which quotas charge which workload, after a quota or a template changed.
* `count`: what others use of each quota, once per tick.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoscaler.adapters.kubernetes.api import node_objects, objects
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.quotas.columns import Applicant
from autoscaler.adapters.kubernetes.quotas.kueue import CLUSTER_QUEUES, LOCAL_QUEUES, QUEUE_LABEL
from autoscaler.adapters.kubernetes.quotas.view import QuotaView
from bench.micro.result import show

GPU = "nvidia.com/gpu"
COHORTS, FLAVORS = 20, 4
TARGET_EVENT_S = 0.001
RESOURCE_QUOTA, UNTYPED = msgspec.json.Decoder(node_objects.ResourceQuota), msgspec.json.Decoder(objects.Untyped)


def resource_quota(number: int, used: int) -> bytes:
    amounts = {f"requests.{GPU}": "500", "requests.cpu": "9000", "pods": "1000"}
    status = {"hard": amounts, "used": {f"requests.{GPU}": str(used), "requests.cpu": "8", "pods": "3"}}
    metadata = {"name": "gpus", "namespace": f"team-{number}"}
    return json.dumps({"metadata": metadata, "spec": {"hard": amounts}, "status": status}).encode()


def cluster_queue(number: int, used: int) -> bytes:
    names = [f"flavor-{place}" for place in range(FLAVORS)]
    quotas = [
        {"name": GPU, "nominalQuota": "100", "lendingLimit": "50"},
        {"name": "cpu", "nominalQuota": "2k"},
        {"name": "memory", "nominalQuota": "9Ti"},
    ]
    group = {"coveredResources": [GPU, "cpu", "memory"], "flavors": [{"name": n, "resources": quotas} for n in names]}
    totals = [{"name": GPU, "total": str(used)}, {"name": "cpu", "total": "8"}, {"name": "memory", "total": "1Ti"}]
    spec = {"cohortName": f"cohort-{number % COHORTS}", "resourceGroups": [group]}
    status = {"flavorsReservation": [{"name": name, "resources": totals} for name in names]}
    return json.dumps({"metadata": {"name": f"queue-{number}"}, "spec": spec, "status": status}).encode()


def local_queue(number: int) -> bytes:
    metadata = {"name": "gpus", "namespace": f"team-{number}"}
    return json.dumps({"metadata": metadata, "spec": {"clusterQueue": f"queue-{number}"}}).encode()


class Blocked:
    """The only column of pods that quotas read."""

    def __init__(self, pods: int) -> None:
        self.blocked = np.zeros(pods, dtype=np.int64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=10_000)
    parser.add_argument("--quotas", type=int, default=200)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()

    view = QuotaView()
    queues, local = view.kueue.open(CLUSTER_QUEUES), view.kueue.open(LOCAL_QUEUES)

    def put(number: int, used: int) -> None:
        if number % 2:
            view.resource_quotas.put(decode(RESOURCE_QUOTA, resource_quota(number // 2, used)))
        else:
            queues.put(decode(UNTYPED, cluster_queue(number // 2, used)))

    for number in range(2 * given.quotas):
        put(number, 1)
    for number in range(given.quotas):
        local.put(decode(UNTYPED, local_queue(number)))
    workloads = [
        Applicant(
            f"team-{number % given.quotas}",
            GPU,
            Needs(GPU, 1.0, 1.0, 1.0, (("pool", f"pool-{number % 50}"),), cpu=8.0),
            {QUEUE_LABEL: "gpus"},
            "",
        )
        for number in range(given.workloads)
    ]
    layout_s = timed(lambda: view.update(workloads))
    pods = np.arange(8 * given.workloads) % given.workloads
    blocked: Any = Blocked(len(pods))
    count_s = [timed(lambda: view.count(blocked, pods, np.ones(given.workloads), 0.0)) for _ in range(20)]
    taken = [timed(lambda number=number: put(number % (2 * given.quotas), number)) for number in range(given.events)]

    found = {
        "workloads": given.workloads,
        "quotas": given.quotas * (1 + FLAVORS),
        "event_median_s": round(statistics.median(taken), 7),
        "event_p99_s": round(float(np.quantile(taken, 0.99)), 7),
        "layout_s": round(layout_s, 5),
        "count_s": round(statistics.median(count_s), 5),
    }
    show({**found, "target_event_p99_s": TARGET_EVENT_S, "met": found["event_p99_s"] <= TARGET_EVENT_S}, given.json)
    return 0


def timed(work: Any) -> float:
    begin_s = time.process_time()
    work()
    return time.process_time() - begin_s


if __name__ == "__main__":
    sys.exit(main())
