import json
import math
from pathlib import Path

import pytest

from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import NAMES, Offer, named


def test_every_named_profile_survives_its_file(tmp_path: Path) -> None:
    for name in NAMES:
        file = tmp_path / f"{name}.json"
        file.write_text(profile_file.write(named(name)))
        assert profile_file.find(str(file)) == (name, named(name))


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(profile_file.ProfileError, match=r"no profile '8b-h10'; available: 8b-h100, .*simulate fit"):
        profile_file.find("8b-h10")


def content(**changes: object) -> dict[str, object]:
    return {**json.loads(profile_file.write(named("8b-h100"))), **changes}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "not a mapping"),
        (json.dumps(content(steps=1)), "unknown field 'steps'; allowed: gpus, block_size"),
        (json.dumps({"step_s": 0.01}), "kv_capacity_tokens, .* missing"),
        (json.dumps(content(step_s=-1.0)), "step_s is -1.0; it must be a number from 1e-06 to 60$"),
        (json.dumps(content(step_s=0)), "step_s is 0; it must be a number from 1e-06"),
        (json.dumps(content(gpus=0)), "gpus is 0; it must be a number from 0.001 to 1,024$"),
        (json.dumps(content(max_num_seqs=1.5)), "max_num_seqs is 1.5; it must be a whole number"),
        (json.dumps(content(max_num_seqs=True)), "max_num_seqs is True; it must be a whole number"),
        (json.dumps(content(kv_token_s=float("nan"))), "kv_token_s is nan"),
        (json.dumps(content(kv_capacity_tokens=100)), "the KV cache holds 100 tokens, less than one request"),
        (
            json.dumps(content(kv_capacity_tokens=10**400)),
            "kv_capacity_tokens is 1000.*; it must be a whole number from 1",
        ),
        (json.dumps(content(kv_capacity_tokens=10**30)), "kv_capacity_tokens is 1000.* to 1,000,000,000,000$"),
        (json.dumps(content(max_model_len=10**19)), "max_model_len is 1000.* whole number from 2 to 200,000,000$"),
        (json.dumps(content(max_num_seqs=10**9)), "max_num_seqs is 1000000000; .* whole number from 1 to 8,191$"),
        (json.dumps(content(step_s=1e-300)), "step_s is 1e-300; it must be a number from 1e-06"),
        (json.dumps(content(gpus=1e308)), "gpus is 1e.308; it must be a number from"),
        (json.dumps(content(weight_bytes=1e300)), "weight_bytes is 1e.300; it must be a number from 0"),
        ("[" * 60_000, "not JSON"),
        (" " * (profile_file.MOST_BYTES + 1), "a profile is shorter"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(profile_file.ProfileError, match=said) as raised:
        profile_file.find(str(file))
    assert str(raised.value).startswith(str(file))


def test_what_could_not_be_read_is_not_written() -> None:
    for gpus in (math.nan, math.inf, 0.0):
        with pytest.raises(profile_file.ProfileError, match=f"gpus is {gpus}; it must be a number from"):
            profile_file.write(named("8b-h100")._replace(gpus=gpus))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(profile_file.ProfileError, match="No such file"):
        profile_file.find(str(tmp_path / "mine.json"))


def test_what_need_not_be_said_has_the_engines_default(tmp_path: Path) -> None:
    short = {key: value for key, value in content().items() if key not in ("gpus", "block_size", "weight_bytes")}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(short))
    _, offer = profile_file.find(str(file))
    assert isinstance(offer, Offer)
    assert (offer.gpus, offer.profile.block_size) == (1.0, 16)
