"""What is logged of an outage."""

import structlog

from autoscaler.outage import Outage


def test_an_outage_is_logged_when_it_begins_and_ends():
    outage = Outage(structlog.get_logger(), "it fails", "it works again", "error", path="/a")
    with structlog.testing.capture_logs() as logs:
        outage.end()
        for reason in ("", "refused", "gone"):
            outage.fail(reason)
        assert outage.problem == "gone"
        outage.end()
        outage.end()
    assert outage.problem == ""
    assert logs == [
        {"event": "it fails", "log_level": "error", "path": "/a", "error": "no reason is given"},
        {"event": "it works again", "log_level": "info", "path": "/a"},
    ]
