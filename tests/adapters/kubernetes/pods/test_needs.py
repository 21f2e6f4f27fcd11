import msgspec

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.api.target_objects import LeaderWorkerSet
from autoscaler.adapters.kubernetes.pods.needs import NAME_FIELD, NodeExpression, PodToleration
from autoscaler.adapters.kubernetes.pods.template import read_template
from autoscaler.adapters.kubernetes.workloads.targets import read_leader_worker_set

GPU = "nvidia.com/gpu"


def template(**spec) -> PodSpec:
    container = {"name": "vllm", "resources": {"limits": {GPU: "2"}}}
    return msgspec.convert({"containers": [container], **spec}, PodSpec)


def test_needs_are_read_from_the_template():
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}]
    seen = read_template(
        template(
            nodeSelector={"team": "a"},
            tolerations=[{"key": "dedicated", "operator": "Exists"}],
            affinity={"nodeAffinity": {required: {"nodeSelectorTerms": terms}}},
        )
    ).needs
    assert (seen.largest, seen.smallest, seen.total) == (2.0, 2.0, 2.0)
    assert seen.selector == (("team", "a"),)
    assert seen.terms == ((NodeExpression("zone", "In", ("x",)),),)
    assert seen.tolerations == (PodToleration("dedicated", "Exists"),)
    by_name = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    named = {"nodeAffinity": {required: {"nodeSelectorTerms": by_name}}}
    assert read_template(template(affinity=named)).needs.terms == ((NodeExpression(NAME_FIELD, "In", ("n1",)),),)


def test_needs_of_a_group_include_all_its_pods():
    pods = {
        "leaderTemplate": {"spec": {"containers": [{"name": "leader"}]}},
        "workerTemplate": {
            "spec": {
                "nodeSelector": {"team": "a"},
                "containers": [{"name": "vllm", "resources": {"limits": {GPU: "8"}}}],
            }
        },
    }
    created = {"metadata": {"name": "x"}, "spec": {"leaderWorkerTemplate": {"size": 4, **pods}}}
    seen = read_leader_worker_set(msgspec.json.decode(msgspec.json.encode(created), type=LeaderWorkerSet)).facts.needs
    assert (seen.largest, seen.smallest, seen.total) == (8.0, 8.0, 24.0)
    assert seen.selector == (("team", "a"),)
