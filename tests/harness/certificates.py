"""A certificate authority for one test run: server, client and expired certificates as files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme


class KeyPair(NamedTuple):
    certificate: Path
    key: Path


class Certificates:
    """`ca` is the file to trust; `issue` makes a key pair that this authority signed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(
        self,
        name: str = "localhost",
        *more_names: str,
        organization: str | None = None,
        valid_for: timedelta = timedelta(days=1),
    ) -> KeyPair:
        """Sign a key pair for a host name, address or client name; a negative `valid_for` has expired already.

        Issuing the same name again overwrites its files, as a rotation does.
        """
        now = datetime.now(UTC)
        issued = self._authority.issue_cert(
            name,
            *more_names,
            common_name=name,
            organization_name=organization,
            not_before=now - timedelta(days=2),
            not_after=now + valid_for,
        )
        pair = KeyPair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        issued.private_key_pem.write_to_path(pair.key)
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return pair
