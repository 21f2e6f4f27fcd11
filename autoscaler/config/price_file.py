"""Prices of devices that the operator states in a file: one document, with the manners of policies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from autoscaler.config.findings import Finding
from autoscaler.config.policy.parse import check_document, load_document
from autoscaler.config.policy.schema import API_VERSION, Section, fault
from autoscaler.config.prices import CAPACITY_TYPES, MOST_USD, key_of
from autoscaler.config.values import Number, OneOf, Pattern
from autoscaler.config.yaml import Document

KIND = "Prices"
MAX_PRICES = 1000
DEVICE = Pattern(
    r"[A-Za-z0-9]([-_. A-Za-z0-9]{0,126}[A-Za-z0-9])?",
    "a name of the whole device, such as NVIDIA-L4, nvidia-l4 or g6.xlarge",
    "not the name of a device",
)


class StatedPrice(Section):
    """The price of one device."""

    device: Annotated[str, DEVICE] = Field(description="Any name of its product.")
    capacity_type: Annotated[str | None, OneOf(CAPACITY_TYPES)] = Field(
        default=None, description="How its node is paid for. Left out: for nodes that have no price of their own."
    )
    usd_per_hour: Annotated[float, Number(0, MOST_USD)] = Field(description="Price of a whole device in an hour.")

    @property
    def key(self) -> str:
        return key_of(self.device, self.capacity_type or "")


class PriceFile(Section):
    """The document."""

    api_version: Annotated[str, OneOf((API_VERSION,))] = Field(description="Version of this format.")
    kind: Annotated[str, OneOf((KIND,))] = Field(description="Kind of the document.")
    prices: Annotated[tuple[StatedPrice, ...], Field(max_length=MAX_PRICES)] = Field(description="The prices.")

    @model_validator(mode="after")
    def _unique(self) -> PriceFile:
        keys = [price.key for price in self.prices]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise fault("prices", f"{twice} has two prices", "each device once for each capacity type")
        return self


def load_prices(path: Path) -> dict[str, float]:
    """Read the prices of a file, by `key_of`. Raises PolicyError with all findings; then nothing is loaded."""
    return {price.key: price.usd_per_hour for price in load_document(path, PriceFile, KIND).prices}


def check_prices(document: Document, _book: object = None) -> Iterator[Finding]:
    """Find what is wrong with a document of prices."""
    return check_document(document, PriceFile, KIND)
