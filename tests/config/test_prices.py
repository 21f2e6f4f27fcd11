"""List prices, stated prices, and what a slice costs."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.catalog.devices import find_device
from autoscaler.config.findings import PolicyError
from autoscaler.config.price_file import load_prices
from autoscaler.config.prices import Prices, find_price
from autoscaler.core.model.fleet import Pool, Workload, WorkloadRef
from tests.core.world import fleet

H100 = "NVIDIA-H100-80GB-HBM3"


def price_per_hour(pool: Pool, stated: dict[str, float], sharers: int = 1) -> float:
    return find_price(pool, stated, {}, sharers).usd


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


@pytest.mark.parametrize(
    "names",
    [
        (
            H100,
            "nvidia-h100-80gb",
            "h100-80gb",
            "NVIDIA-H100-80GB-HBM3-SHARED",
            "p5.48xlarge",
            "Standard_ND96isr_H100_v5",
        ),
        (
            "NVIDIA-A100-SXM4-80GB",
            "NVIDIA-A100-80GB-PCIe",
            "nvidia-a100-80gb",
            "p4de.24xlarge",
            "Standard_NC24ads_A100_v4",
        ),
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB", "nvidia-tesla-a100", "p4d.24xlarge", "a2-highgpu-1g"),
        ("NVIDIA-L4", "nvidia-l4", "l4", "g6.xlarge", "g2-standard-4"),
        ("NVIDIA-L40S", "l40s", "g6e.xlarge"),
        ("Tesla-T4", "nvidia-tesla-t4", "t4", "T4", "g4dn.xlarge", "Standard_NC4as_T4_v3"),
        ("Tesla-V100-SXM2-16GB", "nvidia-tesla-v100", "p3.2xlarge"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "nvidia-rtx-pro-6000", "g7e.2xlarge"),
        ("NVIDIA-H200", "nvidia-h200-141gb", "h200", "p5en.48xlarge"),
    ],
)
def test_one_product_is_found_by_all_its_names(names):
    devices = {find_device(name) for name in names}
    assert len(devices) == 1 and None not in devices
    prices = {price_per_hour(Pool("nvidia.com/gpu", name), {names[-1]: 1.25}) for name in names}
    assert prices == {1.25}


@pytest.mark.parametrize(
    "name",
    ["", "?" * 300, "A1000", "t40", "H1000-80GB", "L4000", "g6f.large", "m5.large", "-mig-1g.10gb"],
)
def test_a_name_that_resembles_a_product_is_unknown(name):
    assert find_device(name) is None


@pytest.mark.parametrize(
    ("sharers", "resource", "price"),
    [
        (4, "nvidia.com/gpu", 0.20),
        (4, "nvidia.com/gpu.shared", 0.20),
        (1, "nvidia.com/gpu", 0.80),
        (0, "nvidia.com/gpu.shared", np.nan),  # no label says how many share it
    ],
)
def test_a_shared_device_costs_its_share(sharers, resource, price):
    assert price_per_hour(Pool(resource, "NVIDIA-L4"), {}, sharers) == pytest.approx(price, nan_ok=True)


@pytest.mark.parametrize(
    ("resource", "product"),
    [
        ("nvidia.com/mig-9g.80gb", H100),
        ("nvidia.com/mig-3g.41gb", H100),
        ("nvidia.com/mig-1g.5gb", H100),  # of the A100 with 40 GB
        ("nvidia.com/mig-" + "9" * 200, H100),
        ("nvidia.com/mig-1g.10gb", "NVIDIA-L4"),
        ("nvidia.com/gpu", "NVIDIA-L4-MIG-1g.6gb"),
    ],
)
def test_a_slice_of_unknown_profile_has_no_price_and_says_so(resource, product):
    pool = Pool(resource, product)
    assert np.isnan(price_per_hour(pool, {product: 2.0}))
    cluster = fleet(
        [1], workloads=(Workload(WorkloadRef("a", "b"), service="chat"),), pools=(pool,), pool=np.array([0])
    )
    prices = Prices({})
    assert np.isnan(prices.variants(cluster).cost[0])
    assert "no such MIG profile" in prices.problems[0] and pool.resource in prices.problems[0]


@pytest.mark.parametrize(
    ("resource", "product", "share"),
    [
        ("nvidia.com/mig-1g.20gb", H100, 1 / 4),  # double memory
        ("nvidia.com/mig-1g.10gb.me", H100, 1 / 7),
        ("nvidia.com/mig-1g.10gb.shared", H100, 1 / 7),
        ("nvidia_com_mig_1g_10gb", H100, 1 / 7),  # kube-state-metrics
        ("nvidia.com/mig-4g.47gb", "NVIDIA-H100-NVL", 4 / 7),
        ("nvidia.com/mig-7g.80gb", H100, 1.0),
        ("nvidia.com/mig-1g.6gb", "NVIDIA-A30", 1 / 4),
        ("nvidia.com/mig-2g.12gb", "NVIDIA-A30", 1 / 2),
        ("nvidia.com/mig-1g.5gb", "nvidia-tesla-a100", 1 / 7),
        ("nvidia.com/mig-3g.90gb", "NVIDIA-B200", 1 / 2),
        ("nvidia.com/mig-1g.24gb", "nvidia-rtx-pro-6000", 1 / 4),
        ("nvidia.com/gpu", "nvidia-h100-80gb-MIG-3g.40gb", 1 / 2),  # GKE
    ],
)
def test_a_slice_costs_its_larger_share(resource, product, share):
    assert price_per_hour(Pool(resource, product), {product: 7.0}) == pytest.approx(7.0 * share)


def test_the_sharers_of_a_pools_nodes_divide_its_price():
    l4 = Pool("nvidia.com/gpu", "NVIDIA-L4")
    cluster = fleet([1], workloads=(Workload(WorkloadRef("a", "b"), service="chat"),), pools=(l4,), pool=np.array([0]))
    groups = replace(cluster.groups, groups=tuple(each._replace(sharers=4) for each in cluster.groups.groups))
    assert Prices({}).variants(replace(cluster, groups=groups)).cost[0] == pytest.approx(0.2)


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


def test_variants_of_one_service_serve_one_model():
    models = ("org/Llama", "llama", "other", "")
    workloads = tuple(
        Workload(WorkloadRef("a", f"w{row}"), service="chat", model=model) for row, model in enumerate(models)
    )
    cluster = fleet([1] * 4, workloads=workloads)
    assert Prices({}).variants(cluster).service.tolist() == [0, 0, 1, 2]  # the last one may serve either
    one_model = replace(cluster, workloads=(*workloads[:2], workloads[3], workloads[3]))
    assert Prices({}).variants(one_model).service.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("text", ["a100-", "-mig-", "-shared", ".shared", "mig-1g.10gb", "v100--", "1g.10gb.me"])
def test_names_of_any_length_are_read_in_part(text):
    name = text * 200_000 + "x"  # minutes, if a regular expression went over it at each of its places
    assert np.isnan(price_per_hour(Pool(name, name), {"NVIDIA-L4": 1.0})) or find_device(name) is not None


def test_sides_of_a_pair_are_no_variants():
    sides = tuple(
        Workload(WorkloadRef("ns", name), service="m", role=role)
        for name, role in (("p", "prefill"), ("d", "decode"), ("a", ""), ("b", ""))
    )
    assert Prices({}).variants(replace(fleet([1] * 4), workloads=sides)).service.tolist() == [-1, -1, 0, 0]


@pytest.mark.parametrize(
    ("resource", "product", "price"),
    [
        ("nvidia.com/gpu", "NVIDIA-GB300", 18.0),
        ("nvidia.com/gpu", "NVIDIA-GH200-480GB", 2.29),
        ("nvidia.com/gpu", "NVIDIA-RTX-A6000", 1.09),
        ("nvidia.com/gpu", "NVIDIA-RTX-6000-Ada-Generation", 1.57),
        ("nvidia.com/gpu", "NVIDIA-L40S-24C", 0.93),  # half the memory of the card, as a virtual GPU
        ("amd.com/gpu", "AMD_Instinct_MI300X_OAM", 6.0),
        ("amd.com/gpu", "Standard_ND96isr_MI300X_v5", 6.0),
        ("amd.com/cpx_nps4", "AMD_Instinct_MI300X_OAM", 0.75),
        ("amd.com/spx_nps1", "AMD_Instinct_MI300X_OAM", 6.0),
        ("amd.com/gpu", "AMD_Instinct_MI325_OAM", 3.8),
        ("amd.com/gpu", "AMD-Instinct-MI355X", 8.6),
        ("habana.ai/gaudi", "HL-225", 1.1),
        ("google.com/tpu", "tpu-v6e-slice", 2.7),
        ("google.com/tpu", "tpu-v5-lite-podslice", 1.2),
        ("google.com/tpu", "tpu-v5p-slice", 4.2),
        ("google.com/tpu", "ct6e-standard-4t", 2.7),
    ],
)
def test_devices_of_other_makers_have_list_prices(resource, product, price):
    assert price_per_hour(Pool(resource, product), {}) == pytest.approx(price)


@pytest.mark.parametrize(
    ("paid", "stated", "measured", "usd", "why"),
    [
        ("spot", {"L4@spot": 0.3, "L4": 0.5}, {}, 0.3, ""),
        ("spot", {"nvidia-l4@spot": 0.3}, {"L4@spot": 9.0}, 0.3, ""),
        ("spot", {"L4": 0.5}, {}, 0.5, ""),  # stated for all nodes
        ("spot", {"L4@reserved": 0.2}, {"L4@spot": 0.25}, 0.25, ""),
        ("spot", {"L4@on-demand": 0.7}, {}, 0.8, "--price PRODUCT@spot=USD"),
        ("spot", {}, {}, 0.8, "--price PRODUCT@spot=USD"),
        ("spot", {}, {"L4@on-demand": 0.6}, 0.6, "--price PRODUCT@spot=USD"),
        ("reserved", {}, {}, 0.8, "--price PRODUCT@reserved=USD"),
        ("on-demand or spot", {"L4@spot": 0.3}, {}, 0.8, "none is known for on-demand or spot nodes"),
        ("on-demand", {"L4@on-demand": 0.7}, {}, 0.7, ""),
        ("on-demand", {}, {}, 0.8, ""),
        ("", {}, {"L4": 0.4}, 0.4, ""),
    ],
)
def test_a_price_is_that_of_the_way_of_paying(paid, stated, measured, usd, why):
    price = find_price(Pool("nvidia.com/gpu", "NVIDIA-L4", capacity_type=paid), stated, measured)
    assert price.usd == pytest.approx(usd)
    assert why in price.why and bool(why) == bool(price.why)


def test_a_stated_price_that_nothing_uses_is_reported():
    prices = Prices({"NVIDIA-L4OS": 1.0, "My-Card": 1.0, "L4": 1.0})
    seen = replace(fleet([1]), pools=(Pool("nvidia.com/gpu", "My-Card"),))
    prices.variants(seen)
    assert len(prices.problems) == 1 and "'NVIDIA-L4OS' is not used" in prices.problems[0]


def prices_of(text: str, path) -> dict[str, float]:
    file = path / "prices.yaml"
    file.write_text(f"apiVersion: vllm-autoscaler.io/v1\nkind: Prices\nprices:\n{text}")
    return load_prices(file)


def test_a_file_states_prices(tmp_path):
    text = "  - {device: NVIDIA-L4, usdPerHour: 0.45}\n  - {device: NVIDIA-L4, capacityType: spot, usdPerHour: 0.18}\n"
    assert prices_of(text, tmp_path) == {"NVIDIA-L4": 0.45, "NVIDIA-L4@spot": 0.18}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  - {device: L4, usdPerHour: -1}\n", ["prices.yaml:4", "usdPerHour", "-1", "from 0 to 10,000"]),
        ("  - {device: L4, usdPerHour: .nan}\n", ["usdPerHour", "from 0 to 10,000"]),
        ("  - {device: L4, usdPerHour: 1000000}\n", ["1000000", "from 0 to 10,000"]),
        ("  - {device: L4, capacityType: sopt, usdPerHour: 1}\n", ["did you mean spot? unknown", "'sopt'", "reserved"]),
        ("  - {device: L4, usdPerHours: 1}\n", ["did you mean usdPerHour?"]),
        ("  - {device: 'a@b', usdPerHour: 1}\n", ["not the name of a device", "'a@b'"]),
        ("  - {device: L4, usdPerHour: 1}\n  - {device: L4, usdPerHour: 2}\n", ["L4 has two prices"]),
        ("  - {device: L4, usdPerHour: 1}\n" * 1001, ["too many", "1000 at most"]),
        ("  L4: 1\n", ["prices", "a list"]),
    ],
)
def test_a_price_file_is_refused_with_place_and_allowed_values(text, words, tmp_path):
    with pytest.raises(PolicyError) as error:
        prices_of(text, tmp_path)
    assert not [word for word in words if word not in str(error.value)], str(error.value)
