"""Matchers in every selector; promtool checks that the result is valid PromQL."""

import subprocess
from pathlib import Path

import pytest
import yaml

from autoscaler.adapters.prometheus.promql.matchers import add_matchers
from tests.adapters.prometheus.promql.test_queries import every_query, without_texts
from tests.harness.process import require_binary

ONE = 'c="p"'


@pytest.mark.parametrize(
    ("written", "narrowed"),
    [
        ("up", 'up{c="p"}'),
        ("up{}", 'up{c="p"}'),
        ('up{a="b"}', 'up{a="b",c="p"}'),
        ('up{a="b",}', 'up{a="b",c="p"}'),
        ('{__name__="up"}', '{__name__="up",c="p"}'),
        ("vllm:num:x", 'vllm:num:x{c="p"}'),
        ("sum by (pod, job) (up)", 'sum by (pod, job) (up{c="p"})'),
        ("sum(up) by (pod)", 'sum(up{c="p"}) by (pod)'),
        ("sum without(x)(rate(up[5m]))", 'sum without(x)(rate(up{c="p"}[5m]))'),
        ("a and on (x) group_left (y) b", 'a{c="p"} and on (x) group_left (y) b{c="p"}'),
        ("a * ignoring(x) b > bool 1e3", 'a{c="p"} * ignoring(x) b{c="p"} > bool 1e3'),
        ("a offset 5m or vector(1)", 'a{c="p"} offset 5m or vector(1)'),
        ("a @ end() OR b @ 123", 'a{c="p"} @ end() OR b{c="p"} @ 123'),
        ("max_over_time(a[5m:1m] offset -1h)", 'max_over_time(a{c="p"}[5m:1m] offset -1h)'),
        ('label_replace(a, "up", "$1", "b", "c{d}")', 'label_replace(a{c="p"}, "up", "$1", "b", "c{d}")'),
        ("a # or b\n+ c", 'a{c="p"} # or b\n+ c{c="p"}'),
        ("0x1F + Inf - NaN + a", '0x1F + Inf - NaN + a{c="p"}'),
        ("histogram_quantile(0.9, a)", 'histogram_quantile(0.9, a{c="p"})'),
        ("quantile_over_time(0.9, a[1m])", 'quantile_over_time(0.9, a{c="p"}[1m])'),
        ('{a="b" or x="y"}', '{a="b" ,c="p" or x="y",c="p"}'),
        ("a{x='}{'} + b", 'a{x=\'}{\',c="p"} + b{c="p"}'),
        ("count_values('v', a)", "count_values('v', a{c=\"p\"})"),
        ("by", "by"),
        ("", ""),
    ],
)
def test_matchers_are_added_to_every_selector(written: str, narrowed: str):
    assert add_matchers(written, ONE) == narrowed
    assert add_matchers(written, "") == written


@pytest.mark.integration
def test_every_query_stays_valid_when_it_is_narrowed(tmp_path: Path):
    texts = [add_matchers(text, 'cluster="prod",team!~"te(st)+"') for text in every_query()]
    rules = [{"record": f"r{number}", "expr": text} for number, text in enumerate(texts)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    promtool = require_binary("promtool", "apt-get install prometheus")
    checked = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for text in texts:
        selectors = without_texts(text).count("{")
        assert text.count('cluster="prod",team!~"te(st)+"}') == selectors
        assert selectors or text == ""
