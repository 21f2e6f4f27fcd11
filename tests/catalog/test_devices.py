"""The page's table of GPUs is the catalog's."""

from pathlib import Path

from autoscaler.catalog.devices import DEVICES, find_device, markdown

PAGE = Path(__file__).parents[2] / "docs/how-to/fit-and-prices.md"


def test_the_page_has_the_table_of_the_catalog() -> None:
    assert markdown() in PAGE.read_text()


def test_each_product_is_found_by_its_own_name() -> None:
    assert [find_device(device.name) for device in DEVICES] == list(DEVICES)
