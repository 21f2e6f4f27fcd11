"""Which policy each service is compared with, and by whose objective its requests are judged."""

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.policy.parse import load
from autoscaler.report.history import FleetHistory, Span
from autoscaler.report.tiers import Tiers

LONG = "a" * 60
SERVICES = tuple(
    ServiceName(cluster, namespace, name)
    for cluster, namespace, name in (
        ("", "chat", "small"),
        ("west", "chat", "small"),
        ("", "chat", "large"),
        ("", "chatter", "large"),
        ("", "ops", LONG[:57]),
    )
)


def test_first_match_goes_before_annotations_and_the_default():
    annotated = {
        ServiceName("west", "chat", "small"): "batch",
        ServiceName("", "chat", "large"): "batch",
        ServiceName("", "chatter", "large"): "gone",
        ServiceName("", "ops", LONG[:57]): "",
    }
    stated = (("chat/l*", "realtime"), ("*/large", "development"), ("nobody", "batch"))
    chosen, notes = Tiers(load(), stated, annotated).choose(SERVICES)
    assert chosen == ("interactive", "batch", "realtime", "development", "interactive")
    assert notes == ("--policy-for nobody: no service in the history has such a name",)
    chosen, notes = Tiers(load(), (), annotated).choose(SERVICES)
    assert chosen == ("interactive", "batch", "batch", "interactive", "interactive")
    assert len(notes) == 1 and "'gone'" in notes[0]


def test_unknown_policy_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match=r"--policy-for chat: no such policy: 'fast'; allowed: batch, "):
        Tiers(load(), (("chat", "fast"),), {})


def test_each_service_is_judged_by_its_own_objective():
    tiers = Tiers(load(), (("chat/large", "batch"), ("chatter", "realtime")), {})
    assert [each.ttft_s for each in tiers.objectives] == [1.0, 900.0, 0.15]
    met = {f"ttft_met{'#' * bool(number)}{number or ''}": float(number + 1) for number in range(3)}
    columns = {name: np.full((2, len(SERVICES)), value, np.float32) for name, value in met.items()}
    history = FleetHistory(Span(0.0, 60.0, 2), SERVICES, columns)
    chosen, _ = tiers.choose(SERVICES)
    judged = tiers.judge(history, chosen)
    assert list(judged.columns) == ["ttft_met"]
    assert judged.column("ttft_met")[0].tolist() == [1, 1, 2, 3, 1]
    spec = tiers.spec_of(chosen)
    assert spec.first_token_limit_s.tolist() == [1.0, 1.0, 900.0, 0.15, 1.0]


def test_objectives_beyond_a_few_are_not_read(tmp_path):
    text = "apiVersion: vllm-autoscaler.io/v1\nkind: Policy\n"
    text += "metadata: {{name: p{0}}}\nspec: {{objective: {{ttft: {1}s}}}}\n"
    for number in range(12):
        (tmp_path / f"{number}.yaml").write_text(text.format(number, number + 1))
    services = tuple(ServiceName("", "team", f"s{number}") for number in range(12))
    annotated = {name: f"p{number}" for number, name in enumerate(services)}
    tiers = Tiers(load([tmp_path], "p0"), (), annotated)
    assert len(tiers.objectives) == 8
    chosen, notes = tiers.choose(services)
    assert chosen[7:9] == ("p7", "p0") and len(notes) == 4 and "p11" in " ".join(notes)
    assert tiers.judge(FleetHistory(Span(0.0, 60.0, 2), services, {}), chosen).columns == {}
