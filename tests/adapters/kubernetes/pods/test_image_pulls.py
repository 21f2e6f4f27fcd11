"""What the kubelet says about the images of pods: durations by event, in any order of arrival, in bounded memory."""

import math

import pytest

from autoscaler.adapters.kubernetes.pods import image_pulls
from autoscaler.adapters.kubernetes.pods.image_pulls import ImagePulls, read_pull_s
from tests.adapters.kubernetes.pods.test_node_events import event

NOW_S = 1_800_000_000.0
PRESENT = 'Container image "vllm/vllm-openai:v0.32.0" already present on machine'


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ('Successfully pulled image "a" in 1m2.5s (1m3.25s including waiting). Image size: 9000000000 bytes.', 63.25),
        ('Successfully pulled image "a" in 412ms (412ms including waiting). Image size: 300 bytes.', 0.412),
        ('Successfully pulled image "registry:5000/a in b" in 1h0m0.5s', 3600.5),
        (PRESENT, 0.0),
        (f"{PRESENT} and can be accessed by the pod", 0.0),
        ('Successfully pulled image "a"', math.nan),
        ('Successfully pulled image "a" in 1.2.3s', math.nan),
        ('Successfully pulled image "a" in 99999999h', math.nan),
        ("Successfully pulled image " + "a" * 100_000, math.nan),
        ("Error: ErrImagePull", math.nan),
        ("", math.nan),
    ],
)
def test_duration_is_read_from_the_kubelets_message(message: str, seconds: float):
    assert read_pull_s(message) == pytest.approx(seconds, nan_ok=True)


def took(seconds: float, at_s: float, name: str = "e", pod: str = "a-0"):
    message = f'Successfully pulled image "a" in {seconds}s ({seconds}s including waiting). Image size: 1 bytes.'
    return event("Pulled", at_s, pod, message=message, metadata={"name": name})


def test_images_of_several_containers_are_added_once():
    told = []
    pulls = ImagePulls(told.append)
    for _ in range(2):  # a new list brings the same events again
        pulls.put(took(60, NOW_S + 60, "init"))
        pulls.put(took(2, NOW_S + 80, "engine"))
        pulls.put(event("Pulled", NOW_S + 900, message=PRESENT, metadata={"name": "restarted"}))
    assert pulls.of_pod(("ns", "a-0"), NOW_S) == (62.0, pytest.approx(math.nan, nan_ok=True))
    assert set(told) == {("ns", "a-0")}


def test_pull_is_running_until_the_kubelet_says_that_it_ended():
    pulls = ImagePulls(lambda pod: None)
    pulls.put(event("Pulling", NOW_S + 5, message='Pulling image "a"'))
    unknown, since_s = pulls.of_pod(("ns", "a-0"), NOW_S)
    assert math.isnan(unknown) and since_s == NOW_S + 5
    pulls.put(took(70, NOW_S + 75))
    assert pulls.of_pod(("ns", "a-0"), NOW_S) == (70.0, pytest.approx(math.nan, nan_ok=True))


def test_events_of_an_earlier_pod_of_the_name_do_not_count():
    pulls = ImagePulls(lambda pod: None)
    pulls.put(took(70, NOW_S - 600))
    assert all(map(math.isnan, pulls.of_pod(("ns", "a-0"), NOW_S)))
    pulls.put(took(50, NOW_S + 60))
    pulls.forget(("ns", "a-0"))
    assert all(map(math.isnan, pulls.of_pod(("ns", "a-0"), NOW_S)))


def test_memory_is_bounded_by_pods_and_by_events_of_a_pod():
    pulls = ImagePulls(lambda pod: None)
    for number in range(100):
        pulls.put(took(1, NOW_S, f"e{number}"))
    assert pulls.of_pod(("ns", "a-0"), NOW_S)[0] == image_pulls.MAX_IMAGES
    for number in range(image_pulls.MAX_PODS):
        pulls.put(took(1, NOW_S, pod=str(number)))
    assert math.isnan(pulls.of_pod(("ns", "a-0"), NOW_S)[0])
