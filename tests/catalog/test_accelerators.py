"""Names of extended resources."""

import re

import pytest

from autoscaler.catalog.accelerators import ResourceKind, from_label, labels, resource_kind

ACCELERATORS = [
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/mig-1g.10gb.me",
    "amd.com/gpu",
    "amd.com/cpx_nps4",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "aws.amazon.com/neurondevice",
    "huawei.com/Ascend910",
    "metax-tech.com/gpu",
    "mthreads.com/gpu",
    "furiosa.ai/rngd",
    "tenstorrent.com/blackhole",
]


@pytest.mark.parametrize("resource", ACCELERATORS)
def test_an_accelerator_is_known_by_its_name_and_its_label(resource: str):
    label = re.sub(r"\W", "_", resource)
    assert resource_kind(resource) is ResourceKind.ACCELERATOR
    assert re.fullmatch(labels(), label)
    assert from_label(label) == resource


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        ("cpu", ResourceKind.OTHER),
        ("hugepages-1Gi", ResourceKind.OTHER),
        ("kubernetes.io/batch-cpu", ResourceKind.OTHER),
        ("rdma/hca_shared_devices", ResourceKind.OTHER),
        ("vpc.amazonaws.com/efa", ResourceKind.OTHER),
        ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", ResourceKind.UNKNOWN),
        ("example.com/gpu", ResourceKind.UNKNOWN),
        ("nvidia.com/gpumem", ResourceKind.UNKNOWN),
        ("gpu.intel.com/i915_monitoring", ResourceKind.UNKNOWN),
        ("huawei.com/Ascend910A-memory", ResourceKind.UNKNOWN),
        ("koordinator.sh/gpu", ResourceKind.UNKNOWN),
    ],
)
def test_other_and_unknown_resources_are_distinguished(resource: str, kind: ResourceKind):
    assert resource_kind(resource) is kind


@pytest.mark.parametrize(
    "label", ["", "cpu", "rdma_ib", "nvidia_com_gpumem", "gpu_intel_com_millicores", "example_com_gpu"]
)
def test_a_label_of_anything_else_names_no_accelerator(label: str):
    assert from_label(label) == ""
