"""Prices and ways of paying as a real Prometheus with OpenCost and kube-state-metrics has them."""

import time

import pytest

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.range.node_costs import read_capacity_types, read_node_costs
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.config.settings import PrometheusSettings
from tests.report.generated import filled_prometheus

pytestmark = pytest.mark.integration

NODES = {  # labels of OpenCost, and the cost of a GPU
    "spot-1": ("g6.xlarge", "0.30"),
    "spot-2": ("g6.xlarge", "0.50"),
    "own": ("g6.xlarge", "0.80"),
    "metal": ("", "2.00"),  # DCGM names its device
    "cpu": ("m5.large", "0"),
    "broken": ("g6.xlarge", "NaN"),
    "negative": ("g5.xlarge", "-1"),
    "absurd": ("p5.48xlarge", "98000000"),
    "zero": ("p4d.24xlarge", "0"),
    "cheap": ("g4dn.xlarge", "0.0001"),
    "strange": ("x9.large", "3.00"),
    "untold": ("g6.xlarge", "0.60"),  # whether it is spot is NaN
}
OPENCOST, TENANT = 'job="opencost",namespace="costs"', 'job="pods",namespace="evil"'
CLUSTERS = {  # series of a cluster: where they were scraped, the node, its type and its cost; and the price of an L4
    "rivals": (((OPENCOST, "a", "g6.xlarge", "0.8"), (TENANT, "a", "g6.xlarge", "90")), None),
    "invented": (((OPENCOST, "a", "g6.xlarge", "0.8"), (TENANT, "b", "g6.xlarge", "90")), None),
    "another": (((OPENCOST, "a", "p5.48xlarge", "8"), (TENANT, "b", "g6.xlarge", "90")), None),
    "one job": (((OPENCOST, "a", "g6.xlarge", "0.8"), (OPENCOST + ',pod="evil-0"', "a", "g6.xlarge", "90")), None),
    "pair": (
        ((OPENCOST + ',pod="c-0"', "a", "g6.xlarge", "0.8"), (OPENCOST + ',pod="c-1"', "a", "g6.xlarge", "0.8")),
        0.8,
    ),
    "two jobs": (((OPENCOST, "a", "g6.xlarge", "0.8"), ('job="kubecost"', "a", "g6.xlarge", "0.801")), 0.8),
    "alone": (((TENANT, "a", "g6.xlarge", "0.9"),), 0.9),
}
PODS = {
    "chat-7d9f8b6c5-bcdfg": "spot-1",
    "chat-7d9f8b6c5-xwvtz": "own",
    "batch-7d9f8b6c5-bcdfg": "spot-2",
    "told-7d9f8b6c5-bcdfg": "metal",
    "none-7d9f8b6c5-bcdfg": "cpu",
    "both-7d9f8b6c5-bcdfg": "spot-1",
    "both-7d9f8b6c5-xwvtz": "shared",  # of which a tenant says otherwise
}
ARCH = 'label_kubernetes_io_arch="amd64"'
LABELLED = {
    "spot-1": 'label_karpenter_sh_capacity_type="spot"',
    "own": 'label_karpenter_sh_capacity_type="on-demand"',
    "spot-2": 'label_cloud_google_com_gke_spot="true",label_cloud_google_com_gke_nodepool="l4"',
}


def exposition(end_s: float) -> str:
    lines = ["# TYPE node_gpu_hourly_cost gauge"]
    moments = [end_s - 60.0 * number for number in range(30, -1, -1)]

    def add(series: str, value: str) -> None:
        lines.extend(f"{series} {value} {at_s:.3f}" for at_s in moments)

    for node, (kind, cost) in NODES.items():
        own = f'instance="{node}",node="{node}",instance_type="{kind}",region="r",provider_id="p",arch="amd64",uid="u"'
        add(f"node_gpu_hourly_cost{{{own}}}", cost)
    for cluster, (series, _) in CLUSTERS.items():
        for scrape, node, kind, cost in series:
            add(f'node_gpu_hourly_cost{{cluster="{cluster}",{scrape},node="{node}",instance_type="{kind}"}}', cost)
    add('kubecost_node_is_spot{instance="untold",node="untold"}', "NaN")
    add(f'kubecost_node_is_spot{{{TENANT},node="shared"}}', "1")
    add('kubecost_node_is_spot{node="shared"}', "0")
    of_others = 'namespace="evil",pod="evil-0",exported_namespace="web",exported_pod="batch-7d9f8b6c5-bcdfg"'
    add(f'kube_pod_info{{{of_others},node="own"}}', "1")
    add(f'kube_node_labels{{{TENANT},label_karpenter_sh_capacity_type="spot",node="shared"}}', "1")
    for node in ("spot-1", "spot-2", "own", "metal"):
        add(f'kubecost_node_is_spot{{instance="{node}",node="{node}"}}', str(int(node.startswith("spot"))))
    for pod, node in PODS.items():
        add(f'kube_pod_info{{namespace="web",pod="{pod}",node="{node}"}}', "1")
    for node in (*NODES, "shared"):
        add(f'kube_node_labels{{{LABELLED.get(node, ARCH)},node="{node}"}}', "1")
    add('DCGM_FI_DEV_FB_USED{Hostname="metal",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3"}', "1000")
    return "\n".join(lines) + "\n# EOF\n"


async def test_prices_are_read_and_doubtful_ones_named(tmp_path):
    end_s = time.time() // 60 * 60
    async with filled_prometheus(tmp_path, exposition(end_s)) as server:
        settings = PrometheusSettings(url=server.url)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 60)
        try:
            span_s = end_s - 1500, end_s
            costs, paid = read_node_costs(reader, span_s), read_capacity_types(reader, span_s, {})
            nothing = read_node_costs(reader, (end_s - 90_000, end_s - 80_000))
        finally:
            reader.close()
    assert costs.prices[""] == pytest.approx(
        {
            "g6.xlarge": (0.3 + 0.5 + 0.8 + 0.6) / 4,
            "g6.xlarge@spot": 0.4,
            "g6.xlarge@on-demand": 0.8,
            "NVIDIA-H100-80GB-HBM3": 2.0,
            "NVIDIA-H100-80GB-HBM3@on-demand": 2.0,
        }
    )
    for cluster, (_, usd) in CLUSTERS.items():
        found = costs.prices.get(cluster, {})
        assert found == ({} if usd is None else {"g6.xlarge": pytest.approx(usd, rel=0.01)}), cluster
        about = [said for said in costs.problems if "of cluster" in said and repr(cluster) in said]
        assert bool(about) == (cluster != "one job"), costs.problems
        assert all(("none is believed" in said) == (usd is None) for said in about), about
    assert "prices of GPUs of cluster 'alone' come from 'evil/pods'" in costs.problems
    assert (
        len([said for said in costs.problems if "'evil/pods'" in said]) == 2
    )  # one for all clusters that it writes of
    for node, value in (
        ("broken", "nan"),
        ("negative", "-1"),
        ("absurd", "9.8e+07"),
        ("zero", "0"),
        ("cheap", "0.0001"),
    ):
        assert [said for said in costs.problems if f"'{node}' is {value}, which is not believed" in said], node
    assert [
        said for said in costs.problems if "'strange' is of no known device: its instance type is 'x9.large'" in said
    ]
    assert not [said for said in costs.problems if "cpu" in said]
    assert nothing == ({}, ())
    assert {(name.namespace, name.name): kind for name, kind in paid.items()} == {
        ("web", "chat"): "on-demand or spot",
        ("web", "batch"): "spot",
        (
            "web",
            "told",
        ): "on-demand",  # by OpenCost: its node has no such label, and "both" has a node of which series differ
    }
