"""What bad input gets: where each case is tested, by name. Bad input gets a clear error and harms nothing else.

The cases are those of the promise; this file keeps the list honest as tests are renamed.
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CHECK = "test_cli.py", "test_check_names_file_line_key_value_and_what_is_allowed"
OPTION = "test_cli.py", "test_an_option_that_makes_no_sense_is_refused_with_code_2_and_one_sentence"
CLIENT = "adapters/prometheus/instant/test_client.py"

CASES = {
    "unknown policy key": [CHECK],
    "min above max": [CHECK],
    "duration without unit": [CHECK, OPTION],
    "cron nonsense": [CHECK],
    "unknown time zone": [CHECK],
    "a policy named by an annotation that does not exist": [
        ("integration/test_direct.py", "test_workloads_that_cannot_be_governed_or_disappear_harm_no_other"),
    ],
    "metrics text truncated": [
        ("adapters/scrape/test_exposition.py", "test_any_bytes_are_read_or_refused_but_nothing_else_happens"),
        (CLIENT, "test_an_answer_cut_off_is_no_answer"),
    ],
    "metrics text binary": [("adapters/scrape/test_exposition.py", "test_binary_is_refused")],
    "metrics text huge": [
        ("adapters/scrape/test_fetch.py", "test_a_huge_body_is_refused_as_soon_as_it_is_too_long"),
        ("adapters/scrape/test_fetch.py", "test_a_gzip_bomb_is_refused_without_unpacking_it"),
        (CLIENT, "test_a_huge_answer_is_refused_at_the_bound"),
    ],
    "hostile label values": [
        ("adapters/scrape/test_pods.py", "test_hostile_label_values_change_nothing_of_what_is_read"),
        ("adapters/scrape/test_pods.py", "test_a_hostile_pod_is_unknown_and_named_and_its_neighbour_is_read_as_ever"),
    ],
    "counters that jump back": [
        ("core/test_readings.py", "test_a_counter_that_restarted_counts_what_it_shows_since"),
        ("adapters/scrape/test_gateways.py", "test_a_counter_that_was_reset_counts_from_zero"),
    ],
    "Prometheus down": [
        (CLIENT, "test_prometheus_down_is_told_with_its_address"),
        ("integration/test_dry_run.py", "test_a_prometheus_that_is_down_is_named_and_the_code_is_1"),
        ("integration/test_direct.py", "test_prometheus_serves_as_well_as_the_pods_themselves"),
    ],
    "Prometheus slow": [(CLIENT, "test_a_slow_server_costs_the_time_out_and_no_more")],
    "Prometheus answers 200 with an error body": [
        (CLIENT, "test_a_body_with_an_error_under_status_200_is_an_error"),
        (
            "integration/test_dry_run.py",
            "test_a_prometheus_that_answers_something_else_is_named_and_the_code_is_1",
        ),
    ],
    "Prometheus answers 401": [(CLIENT, "test_401_is_told_and_the_token_is_not")],
    "Prometheus answers 503": [(CLIENT, "test_a_refusal_is_told_with_status_and_reason")],
    "API server down, then back": [
        (
            "integration/test_leadership.py",
            "test_while_the_api_server_is_away_nothing_shrinks_and_when_it_is_back_nothing_doubles",
        ),
    ],
    "port in use": [
        ("test_cli.py", "test_a_port_in_use_is_one_line_and_code_2"),
        ("test_cli.py", "test_the_grpc_port_in_use_is_one_line_and_code_2"),
    ],
    "certificate missing": [OPTION],
    "certificate expired": [("test_cli.py", "test_a_certificate_that_expired_stops_the_start")],
    "clock stepping": [
        (
            "daemon/test_clock_stepping.py",
            "test_a_step_of_the_wall_clock_neither_shrinks_nor_stops_anything",
        ),
    ],
    "a workload deleted mid-tick": [
        ("daemon/test_loop.py", "test_a_workload_deleted_between_reading_and_acting_harms_no_other"),
        ("integration/test_direct.py", "test_workloads_that_cannot_be_governed_or_disappear_harm_no_other"),
    ],
}


@pytest.mark.parametrize("tests", CASES.values(), ids=CASES)
def test_each_case_has_its_test(tests: list[tuple[str, str]]):
    for file, name in tests:
        assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE), f"{file} has no {name}"
