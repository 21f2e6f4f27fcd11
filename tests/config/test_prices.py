"""List prices, stated prices, and what a slice costs."""

import numpy as np
import pytest

from autoscaler.config.prices import Prices, price_per_hour
from autoscaler.core.model.fleet import Pool, Workload, WorkloadRef
from tests.core.world import fleet

H100 = "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("resource", "product", "price"),
    [
        ("nvidia.com/gpu", H100, 6.88),
        ("nvidia.com/gpu", "NVIDIA-A100-SXM4-80GB", 3.43),
        ("nvidia.com/gpu", "NVIDIA-A100-SXM4-40GB", 2.74),
        ("nvidia.com/gpu", "NVIDIA-L40S", 1.86),
        ("nvidia.com/gpu", "NVIDIA-L4", 0.80),
        ("nvidia.com/mig-3g.40gb", H100, 3.44),  # half the memory
        ("nvidia.com/mig-1g.10gb", H100, 6.88 / 7),  # a seventh of the compute, an eighth of the memory
        ("nvidia.com/gpu", f"{H100}-MIG-2g.20gb", 6.88 * 2 / 7),  # single strategy
    ],
)
def test_list_prices(resource, product, price):
    assert price_per_hour(Pool(resource, product), {}) == pytest.approx(price)


def test_a_stated_price_goes_before_the_list_and_slices_share_it():
    assert price_per_hour(Pool("nvidia.com/gpu", H100), {H100: 2.5}) == 2.5
    assert price_per_hour(Pool("nvidia.com/mig-3g.40gb", H100), {H100: 2.5}) == pytest.approx(1.25)


def test_an_unknown_product_has_no_price():
    assert np.isnan(price_per_hour(Pool("nvidia.com/gpu", "Somebody-Else-9000"), {}))


def test_services_are_grouped_within_their_namespace():
    workloads = (
        Workload(WorkloadRef("a", "full"), service="chat"),
        Workload(WorkloadRef("a", "slice"), service="chat"),
        Workload(WorkloadRef("b", "full"), service="chat"),
        Workload(WorkloadRef("b", "alone")),
    )
    cluster = fleet(
        [1] * 4, workloads=workloads, gpus_per_replica=np.array([2.0, 1, 1, 1]), pool=np.array([0, 0, 0, -1])
    )
    prices = Prices({})
    variants = prices.variants(cluster)
    assert variants.service.tolist() == [0, 0, 1, -1]
    assert variants.cost[:3].tolist() == [13.76, 6.88, 6.88]
    assert np.isnan(variants.cost[3])
    assert prices.variants(cluster) is variants
