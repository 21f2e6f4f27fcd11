import math

import msgspec

from autoscaler.adapters.kube.objects import LeaderWorkerSet, Target
from autoscaler.adapters.kube.targets import DEPLOYMENT, read_group, read_target


def test_a_group_sums_leader_and_workers():
    def with_gpus(count: int) -> dict:
        return {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(count)}}}]}}

    group = {
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 3, "leaderTemplate": with_gpus(1), "workerTemplate": with_gpus(8)},
        },
    }
    row = read_group(msgspec.convert(group, LeaderWorkerSet))
    assert (row.replicas, row.facts.gpus, row.facts.resource) == (2, 17.0, "nvidia.com/gpu")


def test_a_groups_gpus_are_unknown_when_its_workers_are():
    leader = {"spec": {"containers": [{"resources": {"limits": {"amd.com/gpu": "1"}}}]}}
    worker = {"spec": {"containers": [{"resources": {"limits": {"example.com/npu": "8"}}}]}}

    def group(size: int):
        templates = {"size": size, "leaderTemplate": leader, "workerTemplate": worker}
        body = {"metadata": {"name": "x"}, "spec": {"leaderWorkerTemplate": templates}}
        return read_group(msgspec.convert(body, LeaderWorkerSet)).facts

    assert math.isnan(group(3).gpus)
    assert "example.com/npu" in group(3).unclear
    assert (group(1).gpus, group(1).resource, group(1).unclear) == (1.0, "amd.com/gpu", "")


def test_the_writer_is_who_owns_spec_replicas_not_status_replicas():
    fields = [
        {"manager": "controller", "fieldsV1": {"f:status": {"f:replicas": {}}}},
        {"manager": "kubectl\n-scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    text = msgspec.json.encode({"metadata": {"name": "x", "managedFields": fields}, "spec": {"replicas": 2}})
    assert read_target(DEPLOYMENT, msgspec.json.decode(text, type=Target)).writer == "kubectl-scale"
