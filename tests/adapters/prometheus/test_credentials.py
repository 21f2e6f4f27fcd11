"""Credential files that rotate while the process runs."""

from pathlib import Path

import pytest

from autoscaler.adapters.prometheus.credentials import CredentialError, Credentials, Rotating
from autoscaler.config.settings import PrometheusSettings


def test_a_file_is_read_once_until_it_changes(tmp_path: Path):
    file, reads = tmp_path / "file", []
    file.write_text("a")

    def read() -> str:
        reads.append(file.read_text())
        return reads[-1]

    rotating = Rotating((file,), read)
    assert [rotating.get(), rotating.get()] == ["a", "a"]
    file.write_text("longer")
    assert [rotating.get(), rotating.get()] == ["longer", "longer"]
    assert reads == ["a", "longer"]


def test_the_symlink_swap_of_a_mounted_secret_is_noticed(tmp_path: Path):
    """As kubelet does it: token -> ..data/token, ..data -> ..2026_01, and `..data` is replaced by renaming."""
    for version in ("first", "other"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "token").write_text(version)
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / "token").symlink_to("..data/token")
    credentials = Credentials(PrometheusSettings(url="http://a", token_file=tmp_path / "token"))
    assert credentials.authorization() == "Bearer first"
    (tmp_path / "..new").symlink_to("..other")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert credentials.authorization() == "Bearer other"


def test_a_missing_file_is_reported_and_read_when_it_returns(tmp_path: Path):
    token = tmp_path / "token"
    credentials = Credentials(PrometheusSettings(url="http://a", token_file=token))
    with pytest.raises(CredentialError, match=f"{token}: No such file"):
        credentials.authorization()
    token.write_text("here")
    assert credentials.authorization() == "Bearer here"


def test_a_failure_to_make_it_is_not_remembered_as_success(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("")
    credentials = Credentials(PrometheusSettings(url="http://a", token_file=token))
    for _ in range(2):
        with pytest.raises(CredentialError, match="empty"):
            credentials.authorization()


def test_without_credentials_there_is_no_header():
    credentials = Credentials(PrometheusSettings(url="http://a"))
    assert credentials.authorization() is None
    assert credentials.context() is True
