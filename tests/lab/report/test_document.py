import json
from dataclasses import replace
from pathlib import Path

from autoscaler.lab.compare.result import LearningResult
from autoscaler.lab.report.document import document, to_json
from tests.lab.report.comparisons import NEVER, PLAN, UNTOLD, comparison, run

PROMISED = {
    "name": str,
    "tuned": bool,
    "params": dict,
    "attainment": float,
    "attainment_ttft": float,
    "attainment_itl": float,
    "gpu_hours": float,
    "ttft_p50_s": float,
    "ttft_p95_s": float,
    "ttft_p99_s": float,
    "scale_ups": int,
    "scale_downs": int,
    "flaps": int,
}


def test_documented_keys_exist_with_their_types() -> None:
    written = json.loads(to_json([comparison()]))
    assert {"trace": "office-day", "profile": "8b-h100", "seed": 7}.items() <= written.items()
    assert written["lower_bound"] == {"gpu_hours": 10.0, "estimate_gpu_hours": 11.5}
    for policy in written["policies"]:
        assert {key: type(policy[key]) for key in PROMISED} == PROMISED
    assert [policy["name"] for policy in written["policies"]] == ["ours", "keda-queue"]


def test_offline_plan_has_a_key_of_its_own() -> None:
    (without, offline_plan) = (json.loads(to_json([each])) for each in (comparison(), comparison(offline_plan=PLAN)))
    assert without["offline_plan"] is None
    assert offline_plan["offline_plan"] == {"gpu_hours": 11.0, "attainment": 0.992}
    assert offline_plan["policies"] == without["policies"]


def test_learning_result_is_beside_the_scored_result() -> None:
    chosen = replace(run("keda-rps"), before=LearningResult(0.9921234, 7.0))
    written = json.loads(to_json([comparison(run(), chosen, learned_s=3600.0)]))
    assert written["learned_s"] == 3600.0
    assert [policy["before"] for policy in written["policies"]] == [None, {"attainment": 0.992123, "gpu_hours": 7.0}]
    assert not any(policy["tuned"] or policy["default"] for policy in written["policies"])


def test_every_key_is_documented() -> None:
    written = document([comparison()])
    assert isinstance(written, dict)
    text = (Path(__file__).parents[3] / "docs" / "reference" / "simulate.md").read_text("utf-8")
    keys = [*written, *written["objective"], *written["policies"][0]]
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_several_traces_make_an_ordered_list() -> None:
    written = document([comparison(), comparison(trace="night")])
    assert isinstance(written, list)
    assert [each["trace"] for each in written] == ["office-day", "night"]


def test_unknown_number_is_null() -> None:
    text = to_json([comparison(run(ttft_p99_s=NEVER, attainment=float("nan")))])
    (policy,) = json.loads(text)["policies"]
    assert policy["ttft_p99_s"] is None
    assert type(policy["unfinished"]) is int
    assert policy["attainment"] is None
    assert "Infinity" not in text
    assert "NaN" not in text
    (untold,) = json.loads(to_json([comparison(UNTOLD)]))["policies"]
    assert [untold[key] for key in ("goodput_rps", "breach_s", "unfinished")] == [None] * 3
