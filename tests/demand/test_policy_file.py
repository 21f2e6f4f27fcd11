"""The names of drafts, which tenants choose."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.cli.main import main
from autoscaler.demand.policy_file import policy_names

PAIR = [ServiceName("", "a-b", "c"), ServiceName("", "a", "b-c")]
FORGED = ServiceName("", "a", policy_names(PAIR)[0].removeprefix("a-"))


@pytest.mark.parametrize(
    "services",
    [
        PAIR,
        [*PAIR, FORGED],
        [("one", "a", "b"), ("two", "a", "b")],
        [("", "a", "b" * 70 + "c"), ("", "a", "b" * 70 + "d")],
        [("", "A", "b"), ("", "a", "b"), ("", "a", "B"), ("", "", "\n"), ("", "..", "/"), ("", "", "service-3")],
        [("", "", "\ud800"), ("", "", "\udfff")],
    ],
)
def test_no_two_services_share_the_name_of_a_draft(services: list[tuple[str, str, str]]) -> None:
    names = policy_names([ServiceName(*each) for each in services])
    assert len({*names}) == len(services)
    assert all(re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)


def test_a_single_service_has_its_plain_name() -> None:
    assert policy_names([ServiceName("eu", "Chat", "chat_8b")]) == ["chat-chat-8b"]


@pytest.mark.parametrize("given", [".", "mine.yaml"], ids=["folder", "file"])
def test_drafts_beside_policies_are_refused(given: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    arguments = ["demand", "--prometheus", "http://127.0.0.1:9", "--policy", str(tmp_path / given)]
    result = CliRunner().invoke(main, [*arguments, "--drafts", str(tmp_path / "link")])
    assert result.exit_code == 2
    assert "drafts may replace policies of --policy" in result.output and "allowed: another folder" in result.output
