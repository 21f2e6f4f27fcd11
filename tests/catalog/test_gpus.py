"""Which pod and which device a DCGM series is about, under every convention of labels."""

from itertools import chain

from autoscaler.catalog.gpus import ACTIVITY, FB_FREE, FB_USED, LINKS, device_of, max_value, metric_names
from autoscaler.catalog.series import pod_of


def test_a_pod_is_found_with_honor_labels() -> None:
    assert pod_of({"namespace": "llm", "pod": "qwen-0", "container": "vllm"}) == ("llm", "qwen-0")


def test_a_pod_is_found_without_honor_labels() -> None:
    labels = {"exported_namespace": "llm", "exported_pod": "qwen-0", "namespace": "gpu-operator", "pod": "dcgm-x"}
    assert pod_of(labels) == ("llm", "qwen-0")


def test_a_pod_is_found_by_old_label_names() -> None:
    labels = {"pod_namespace": "llm", "pod_name": "qwen-0", "namespace": "gpu-operator", "pod": "dcgm-x"}
    assert pod_of(labels) == ("llm", "qwen-0")


def test_an_unused_device_belongs_to_no_pod() -> None:
    assert pod_of({"gpu": "2", "UUID": "GPU-a"}) is None
    assert pod_of({"exported_pod": "qwen-0", "namespace": "gpu-operator", "pod": "dcgm-x"}) is None


def test_mig_instances_of_one_gpu_are_different_devices() -> None:
    parent = {"gpu": "1", "UUID": "GPU-6"}
    instances = [{**parent, "GPU_I_ID": str(index), "GPU_I_PROFILE": "3g.40gb"} for index in (1, 2)]
    assert len({device_of(labels) for labels in [parent, *instances]}) == 3


def test_both_spellings_of_hostname_separate_nodes() -> None:
    assert device_of({"gpu": "0", "Hostname": "a"}) != device_of({"gpu": "0", "Hostname": "b"})
    assert device_of({"gpu": "0", "Hostname": "a"}) != device_of({"gpu": "1", "Hostname": "a"})
    assert device_of({"gpu": "0", "hostname": "a"}) != device_of({"gpu": "0", "hostname": "b"})


def test_old_dcgm_names_come_first_and_gpu_util_is_no_activity() -> None:
    assert [row.name for row in ACTIVITY["tensor_active"]] == [
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
    ]
    assert not any("GPU_UTIL" in row.name for rows in ACTIVITY.values() for row in rows)


def test_blank_values_of_dcgm_are_unknown() -> None:
    blanks = [float(2**power) + mark for power in (31, 47, 63) for mark in range(-16, -10)]
    blanks += [140737488355328.0 + mark for mark in range(5)]
    links = set(chain.from_iterable(LINKS.values()))  # 64-bit fields, which have no marks of 32 bits
    assert not any(blank <= max_value(name) for blank in blanks for name in set(metric_names()) - links)
    assert not any(blank <= max_value(name) for blank in blanks if blank > 2**32 for name in links)
    assert max_value(FB_USED) == max_value(FB_FREE) > 2 * 288 * 1024


def test_a_device_of_two_exporters_is_one() -> None:
    device = {"GPU_I_ID": "2", "GPU_I_PROFILE": "1g.10gb"}
    names = ({"UUID": "GPU-a", "Hostname": "node-1", "gpu": "0"}, {"uuid": "GPU-a", "hostname": "10.0.0.1", "gpu": "1"})
    assert len({device_of({**device, **each}) for each in names}) == 1
