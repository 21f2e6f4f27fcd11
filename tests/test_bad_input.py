"""Bad input gets a clear error and harms nothing else: each case and the names of its tests.

A test that is renamed must be renamed here as well.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CHECK = "test_check_names_file_line_key_value_and_what_is_allowed"
OPTION = "test_invalid_option_exits_2_with_one_sentence"

CASES = {
    "unknown policy key": [CHECK],
    "min above max": [CHECK],
    "duration without unit": [CHECK, OPTION],
    "cron nonsense": [CHECK],
    "unknown time zone": [CHECK],
    "a policy named by an annotation that does not exist": [
        "test_unscalable_workloads_do_not_affect_others",
    ],
    "metrics text truncated": [
        "test_any_bytes_are_parsed_or_refused",
        "test_a_truncated_response_is_no_answer",
    ],
    "metrics text binary": ["test_binary_is_refused"],
    "metrics text huge": [
        "test_a_huge_body_is_refused_as_soon_as_it_is_too_long",
        "test_a_gzip_bomb_is_refused_without_unpacking_it",
        "test_a_huge_answer_is_refused_at_the_bound",
    ],
    "hostile label values": [
        "test_hostile_label_values_change_no_reading",
        "test_a_hostile_pod_is_reported_and_harms_no_other",
    ],
    "counters that jump back": [
        "test_reset_counter_counts_its_value_as_increase",
        "test_a_counter_that_was_reset_counts_from_zero",
    ],
    "Prometheus down": [
        "test_prometheus_down_is_reported_with_its_address",
        "test_a_prometheus_that_is_down_is_named_and_the_code_is_1",
        "test_prometheus_gives_the_same_count_as_the_pods",
    ],
    "Prometheus slow": ["test_a_slow_server_costs_the_time_out_and_no_more"],
    "Prometheus answers 200 with an error body": [
        "test_a_body_with_an_error_under_status_200_is_an_error",
        "test_exit_code_is_1_when_the_server_is_not_a_prometheus",
    ],
    "Prometheus answers 401": ["test_401_is_reported_without_the_token"],
    "Prometheus answers 503": ["test_a_refusal_is_reported_with_status_and_reason"],
    "API server down, then back": [
        "test_counts_stay_during_an_outage_of_the_api_server",
    ],
    "port in use": [
        "test_a_port_in_use_is_one_line_and_code_2",
        "test_the_grpc_port_in_use_is_one_line_and_code_2",
    ],
    "certificate missing": [OPTION],
    "certificate expired": ["test_a_certificate_that_expired_stops_the_start"],
    "clock stepping": [
        "test_counts_stay_when_the_wall_clock_steps",
    ],
    "a workload deleted mid-tick": [
        "test_deleting_a_workload_during_a_tick_harms_no_other",
        "test_unscalable_workloads_do_not_affect_others",
    ],
    "labels of nodes missing or absurd": [
        "test_nodes_without_product_form_one_pool",
        "test_an_absurd_label_is_not_believed",
        "test_absurd_labels_and_numbers_of_one_node_harm_no_other",
    ],
    "unknown MIG profile": [
        "test_a_slice_of_unknown_profile_has_no_price_and_says_so",
        "test_absurd_labels_and_numbers_of_one_node_harm_no_other",
    ],
    "negative or huge quantities": [
        "test_what_is_no_quantity_is_unknown",
        "test_impossible_numbers_of_devices_are_unknown",
        "test_impossible_numbers_of_devices_are_told_and_not_believed",
    ],
    "two variants on different models": [
        "test_variants_of_one_service_serve_one_model",
        "test_variants_of_other_models_take_no_load_from_each_other",
    ],
    "a cost of zero": ["test_variants_that_cost_nothing_grow_first"],
    "a node group that vanishes mid-tick": [
        "test_group_that_vanishes_in_mid_tick_stops_no_decision",
        "test_group_that_vanishes_leaves_its_pods_nowhere",
    ],
    "50 scheduling gates": ["test_gated_replicas_leave_their_gpus_to_others"],
    "another installation on the same workload": [
        "test_installations_leave_a_workload_to_one_of_them",
        "test_two_installations_write_less_and_less_often",
        "test_field_manager_names_the_installation",
    ],
}


DEFINED = {
    name
    for file in TESTS.rglob("test_*.py")
    for name in re.findall(r"(?m)^(?:async )?def (test_\w+)", file.read_text())
}


@pytest.mark.parametrize("tests", CASES.values(), ids=CASES)
def test_each_case_has_its_test(tests: list[str]):
    assert set(tests) <= DEFINED


def test_handlers_expect_all_that_decoders_raise() -> None:
    """Decoders raise UnicodeDecodeError and RecursionError, too. A handler may be narrow if it raises again."""
    found = []
    texts = {path: path.read_text() for path in (TESTS.parent / "autoscaler").rglob("*.py")}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)) if "msgspec." in text else ():
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                narrow = "msgspec." in ast.unparse(node.type)
                if narrow and not any(isinstance(inner, ast.Raise) and not inner.exc for inner in ast.walk(node)):
                    found.append(f"{path}:{node.lineno}")
    assert not found
