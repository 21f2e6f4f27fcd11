"""What is believed of the daemon's metrics, of which any scraped pod may write."""

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.own_use import believed_scrapes

NAN = np.nan
CHAT, LATER = ("team", "chat", "state", "serving"), ("team", "chat", "state", "floor")
POOL, QUOTA = ("", "", "", "nvidia.com/gpu", "H100", ""), ("", "", "", "large", "nvidia.com/gpu", "")


@pytest.mark.parametrize(
    ("told", "believed", "said"),
    [
        ({CHAT: {"ops": [1, 2, 3, 4]}}, {CHAT: [1, 2, 3, 4]}, ""),
        # The daemon moves to another namespace.
        ({CHAT: {"ops": [1, 2, NAN, NAN], "platform": [NAN, NAN, 3, 4]}}, {CHAT: [1, 2, 3, 4]}, "at different times"),
        ({CHAT: {"ops": [1, 2, 5, NAN], "platform": [NAN, NAN, 3, 4]}}, {CHAT: [1, 2, NAN, 4]}, "while several do"),
        # A tenant writes for an hour: of that one nothing is believed, nor of a state that the daemon does not tell.
        ({CHAT: {"ops": [1, 2, 3, 4], "evil": [NAN, 9, NAN, NAN]}}, {CHAT: [1, NAN, 3, 4]}, "'evil', 'ops' all export"),
        ({CHAT: {"ops": [1, 2, 3, 4]}, LATER: {"evil": [NAN, NAN, 9, 9]}}, {CHAT: [1, 2, NAN, NAN]}, "'team/chat'"),
        ({CHAT: {"ops": [1, 1, 1, 1], "evil": [9, 9, 9, 9]}}, {}, "none is believed"),
        # Pods of its own namespace go before all else, also where they tell nothing.
        ({CHAT: {"ops": [1, 2, 3, 4], "team": [NAN, 7, NAN, NAN]}}, {CHAT: [NAN, 7, NAN, NAN]}, ""),
        ({POOL: {"ops": [1, 1, NAN, NAN], "evil": [NAN, NAN, NAN, 9]}}, {POOL: [1, 1, NAN, 9]}, "at different times"),
        # A tenant invents a quota, from which a pool that is short could borrow.
        (
            {POOL: {"ops": [1, 2, 3, 4]}, QUOTA: {"evil": [NAN, NAN, 9, 9]}},
            {POOL: [1, 2, NAN, NAN]},
            "pools and quotas",
        ),
    ],
)
def test_scrapes_are_believed_while_one_tells(told, believed, said):
    problems: dict[str, None] = {}
    columns = {key: {scrape: np.array(values, float) for scrape, values in of.items()} for key, of in told.items()}
    found = believed_scrapes(columns, problems)
    assert found.keys() == believed.keys()
    for key, values in believed.items():
        np.testing.assert_array_equal(found[key], values)
    assert said in " ".join(problems) and len(problems) == bool(said)
