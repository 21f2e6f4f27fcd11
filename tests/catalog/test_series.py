"""Rows of a metric table: their parts and their names."""

from autoscaler.catalog.series import Series, renamed


def test_renamed_alternatives_come_in_the_order_of_their_names() -> None:
    rows = (Series("vllm:x", plus=(Series("vllm:y"),)), Series("plain"))
    variants = renamed(rows, str, lambda name: name.replace(":", "_"))
    assert variants == (*rows, Series("vllm_x", plus=(Series("vllm_y"),)))


def test_all_parts_of_a_row_are_listed() -> None:
    row = Series("x", plus=(Series("p", plus=(Series("q"),)),))
    assert [part.name for part in row.parts()] == ["x", "p", "q"]
