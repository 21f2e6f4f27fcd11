"""The page about what is read: complete, and the same as the table."""

import re
from pathlib import Path

from autoscaler.adapters.prometheus.discovery.kube_state import controllers_query, pods_query
from autoscaler.adapters.prometheus.range.node_costs import NODE_LABELS, POD_NODES
from autoscaler.adapters.prometheus.range.team_labels import label_sources
from autoscaler.catalog.engines import ENGINES, HISTOGRAMS
from autoscaler.catalog.inputs import LOST, markdown

PAGE = Path(__file__).parents[2] / "docs/reference/inputs.md"


def test_the_page_is_the_one_that_the_table_prints() -> None:
    assert PAGE.read_text() == markdown()


def test_every_engine_metric_and_loss_is_on_the_page() -> None:
    page = markdown()
    for engine in ENGINES.values():
        for column, readings in engine.readings.items():
            suffix = "_bucket" if column in HISTOGRAMS else ""
            assert all(f"`{part.name}{suffix}`" in page for row in readings for part in row.parts())
    assert {column for engine in ENGINES.values() for column in engine.readings} == set(LOST)


def test_every_kube_state_metric_is_on_the_page() -> None:
    teams = " ".join(name for name, _ in label_sources(""))
    queried = pods_query("up") + controllers_query("up") + f" {POD_NODES} {NODE_LABELS} {teams}"
    assert set(re.findall(r"kube_\w+", queried)) == set(re.findall(r"`(kube_\w+)`", markdown()))


def test_names_that_are_subtracted_are_marked() -> None:
    """Else a reader takes cached tokens for another name of computed ones."""
    for engine, name in (("vllm", "vllm:prefix_cache_hits_total"), ("sglang", "sglang:cached_tokens_total")):
        (row,) = re.findall(rf"\| `prompt_tokens` \| (.*`{engine}:prompt_tokens_total`.*) \| no planner", markdown())
        assert f"less `{name}`" in row
        assert "less `" + f"{engine}:prompt_tokens" not in row
