"""Prices of replicas in a report, by what is stated, measured and listed, and how their nodes are paid for."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.service_queries import Devices, ServiceName
from autoscaler.core.model.fleet import Pool
from autoscaler.report.facts import PriceSources, gather_facts

L4, ODD = Pool("nvidia.com/gpu", "NVIDIA-L4"), Pool("nvidia.com/gpu", "Someone-9000")
NAMES = tuple(ServiceName("", "web", name) for name in ("chat", "batch", "odd", "dark"))
DEVICES = {NAMES[0]: Devices(2, L4), NAMES[1]: Devices(1, L4), NAMES[2]: Devices(1, ODD)}


def test_prices_follow_the_way_of_paying_and_sums_name_the_rest():
    paid = {NAMES[0]: "spot", NAMES[1]: "spot"}
    listed = gather_facts(NAMES, DEVICES, None, PriceSources({}, {}, paid))
    assert listed.usd_per_hour[:2].tolist() == [1.6, 0.8]
    assert "has its price on demand" in listed.reasons[0]
    measured = gather_facts(NAMES, DEVICES, None, PriceSources({}, {"": {"g6.xlarge@spot": 0.3}}, paid))
    assert measured.usd_per_hour[:2] == pytest.approx([0.6, 0.3])
    others = PriceSources({}, {"": {"g6.xlarge@spot": 0.3}, "elsewhere": {"g6.xlarge@spot": 9.0}}, paid)
    assert gather_facts(NAMES, DEVICES, None, others).usd_per_hour[:2] == pytest.approx([0.6, 0.3])
    stated = gather_facts(NAMES, DEVICES, None, replace(others, stated={"nvidia-l4@spot": 0.2}))
    assert stated.usd_per_hour[:2] == pytest.approx([0.4, 0.2])
    assert stated.reasons[:2] == ("", "")
    money = stated.money(NAMES, stated.usd_per_hour * 10, np.array([True, True, True, False]))
    assert money.say().startswith("$6.00 for 2 of 3 services; 1 without a price: web/odd (price of nvidia.com/gpu on")
    assert "no metric names its GPU" in stated.reasons[3]
