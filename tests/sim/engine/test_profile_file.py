import json
import math
from pathlib import Path

import pytest

from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import NAMES, ReplicaSpec, find_profile


def test_every_named_profile_survives_a_round_trip(tmp_path: Path) -> None:
    for name in NAMES:
        file = tmp_path / f"{name}.json"
        file.write_text(profile_file.write(find_profile(name)))
        assert profile_file.find(str(file)) == (name, find_profile(name))


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(profile_file.ProfileError, match=r"no profile '8b-h10'; available: 8b-h100, .*simulate fit"):
        profile_file.find("8b-h10")


TEXT = """{
  "gpus": 0.14,
  "step_s": 0.01,
  "sequence_s": 3e-05,
  "kv_token_s": 4E-7,
  "prompt_token_s": 2.9e-4,
  "kv_capacity_tokens": 8000,
  "max_num_seqs": 256,
  "max_model_len": 4096,
  "weight_bytes": 5.7e9
}
"""


def content(**changes: object) -> dict[str, object]:
    return {**json.loads(profile_file.write(find_profile("8b-h100"))), **changes}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "not a mapping"),
        (json.dumps(content(steps=1)), "unknown field 'steps', found 1; allowed: gpus, product, block_size"),
        (json.dumps({"step_s": 0.01}), "kv_capacity_tokens, .* missing"),
        (json.dumps(content(step_s=-1.0)), "step_s is -1.0; it must be a number from 1e-06 to 60$"),
        (json.dumps(content(step_s=0)), "step_s is 0; it must be a number from 1e-06"),
        (json.dumps(content(gpus=0)), "gpus is 0; it must be a number from 0.001 to 1,024$"),
        (json.dumps(content(max_num_seqs=1.5)), "max_num_seqs is 1.5; it must be a whole number"),
        (json.dumps(content(max_num_seqs=True)), "max_num_seqs is True; it must be a whole number"),
        (json.dumps(content(kv_token_s=float("nan"))), "kv_token_s is nan"),
        (
            json.dumps(content(kv_capacity_tokens=100)),
            "kv_capacity_tokens is 100; it must be at least 131,088, max_model_len and a block, or",
        ),
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
        (json.dumps(content(product="a b")), "product is 'a b'; it must be letters, digits"),
        ("[" * 60_000, "not JSON"),
        (" " * (profile_file.MOST_BYTES + 1), f"more than {profile_file.MOST_BYTES} bytes"),
    ],
)
def test_invalid_file_is_named_with_its_error(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(profile_file.ProfileError, match=said) as raised:
        profile_file.find(str(file))
    assert str(raised.value).startswith(str(file))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"step_s": 0.01,',
            '"step_s": 0.01,\n  "step_s": 0.02,',
            "line 4: step_s is given twice, first in line 3, found 0.02; allowed: once",
        ),
        ('"step_s": 0.01,', '"step_s": NaN,', "line 3: step_s is nan; it must be a number from 1e-06 to 60"),
        ('"step_s": 0.01,', '"step_s": "0.01",', "line 3: step_s is '0.01'; it must be a number from 1e-06 to 60"),
        ('"gpus": 0.14,', '"gpus": 2000,', "line 2: gpus is 2000; it must be a number from 0.001 to 1,024"),
        (
            '"gpus": 0.14,',
            '"gpus": 0.14, "a \\" : {\\n": [1],\n "speed": 3,',
            r"line 2: unknown field 'a \" : {\\n', found \[1\]; allowed: gpus, product, block_size",
        ),
        (
            '"max_model_len": 4096,',
            '"max_model_len": 9000,',
            "line 7: kv_capacity_tokens is 8000; it must be at least 9,016",
        ),
        (
            '"max_model_len": 4096,',
            '"max_model_len": 4096, "max_batched_tokens": 2,',
            "line 9: max_batched_tokens is 2; it",
        ),
        (
            '"weight_bytes": 5.7e9',
            '"weight_bytes": 1e15',
            "line 10: weight_bytes is 1e.15; it must be at most 70,000,000,000: gpus is 0.14, and no GPU has more",
        ),
        ("}", "} }", "line 11: not JSON"),
    ],
)
def test_error_in_a_file_is_named_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "mine.json"
    assert old in TEXT
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(profile_file.ProfileError, match=f"^{file}, {said}"):
        profile_file.find(str(file))


def test_numbers_are_read_in_any_json_notation(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(TEXT.replace("\n", "\r\n\t"))
    _, replica_spec = profile_file.find(str(file))
    assert (replica_spec.profile.sequence_s, replica_spec.profile.prompt_token_s) == (3e-5, 2.9e-4)


def test_unreadable_profile_is_not_written() -> None:
    for gpus in (math.nan, math.inf, 0.0):
        with pytest.raises(profile_file.ProfileError, match=f"gpus is {gpus}; it must be a number from"):
            profile_file.write(find_profile("8b-h100")._replace(gpus=gpus))
    with pytest.raises(
        profile_file.ProfileError, match="weight_bytes is 16060000000; it must be at most 5,000,000,000: "
    ):
        profile_file.write(find_profile("8b-h100")._replace(gpus=0.01))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(profile_file.ProfileError, match="No such file"):
        profile_file.find(str(tmp_path / "mine.json"))


def test_missing_optional_field_has_the_engine_default(tmp_path: Path) -> None:
    short = {key: value for key, value in content().items() if key not in ("gpus", "block_size", "weight_bytes")}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(short))
    _, replica_spec = profile_file.find(str(file))
    assert isinstance(replica_spec, ReplicaSpec)
    assert (replica_spec.gpus, replica_spec.profile.block_size) == (1.0, 16)
