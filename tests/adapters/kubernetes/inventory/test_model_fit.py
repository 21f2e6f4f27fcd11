"""Whether a workload's model fits on the devices of its nodes, by what its manifest states."""

import pytest

from autoscaler.adapters.kubernetes.inventory.model_fit import misfit
from autoscaler.adapters.kubernetes.inventory.pools import lay_out_pools
from autoscaler.adapters.kubernetes.pods.template import Facts
from tests.adapters.kubernetes.inventory.world import GKE, GPU, MIG, PRODUCT, facts, nodes

L4, H100 = {PRODUCT: "NVIDIA-L4"}, {PRODUCT: "NVIDIA-H100-80GB-HBM3"}
MEMORY = "nvidia.com/gpu.memory"


def told(found: Facts, weights_gb: float, *each: tuple[dict[str, str], dict[str, str]], **options: str) -> str:
    found = found._replace(memory=tuple((name.replace("_", "-"), value) for name, value in options.items()))
    return misfit(found, weights_gb, lay_out_pools(nodes(*each).nodes, [found]), 0)


def test_arithmetic_is_told_when_a_model_fits_on_no_device():
    problem = told(facts(), 30, (L4, {GPU: "1"}))
    assert problem == ("the model does not fit: needs 27.9 GiB of weights on 24 GiB × 0.92 - 1 GiB: short by 6.9 GiB")


def test_a_model_that_fits_on_one_of_its_products_is_not_told():
    assert told(facts(), 30, (L4, {GPU: "1"}), (H100, {GPU: "1"})) == ""


def test_the_label_of_the_memory_counts_before_the_products_name():
    assert told(facts(), 22, (L4, {GPU: "1"})) == ""
    assert "22.5 GiB" in told(facts(), 22, (L4 | {MEMORY: "23034"}, {GPU: "1"}))


@pytest.mark.parametrize("label", ["", "-1", "0", "9" * 30, "80Gi", "²", "7"])
def test_an_absurd_label_is_not_believed(label):
    assert told(facts(), 60, (H100 | {MEMORY: label}, {GPU: "1"})) == ""


def test_slice_has_the_memory_of_its_profile():
    assert "40 GiB × 0.92" in told(
        facts("nvidia.com/mig-3g.40gb"), 60, (H100 | {MEMORY: "81559"}, {"nvidia.com/mig-3g.40gb": "2"})
    )
    gke = {GKE: "nvidia-h100-80gb", "cloud.google.com/gke-gpu-partition-size": "1g.10gb"}
    assert "10 GiB × 0.92" in told(facts(), 16, (gke, {GPU: "7"}))


def test_slices_do_not_work_together():
    assert "cannot work together" in told(
        facts(MIG)._replace(gpus=2.0), 0, (H100, {MIG: "7"}), tensor_parallel_size="2"
    )
    assert told(facts()._replace(gpus=2.0), 0, (H100, {GPU: "8"}), tensor_parallel_size="2") == ""


def test_nothing_is_told_of_what_is_not_known():
    assert told(facts(), 0, (L4, {GPU: "1"})) == ""
    assert told(facts(), 10_000, ({}, {GPU: "1"})) == ""
    assert told(facts("amd.com/gpu"), 10_000, ({"amd.com/gpu.product-name": "MI9000X"}, {"amd.com/gpu": "8"})) == ""
    assert told(facts(), 10_000) == ""


def test_pool_without_nodes_has_the_device_of_its_template():
    assert "24 GiB" in told(facts(product=(GKE, "nvidia-l4")), 30)
