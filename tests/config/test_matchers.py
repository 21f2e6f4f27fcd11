"""Label matchers, read and refused."""

import pytest

from autoscaler.config.matchers import MAX_CHARACTERS, read_matchers


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('cluster="prod"', 'cluster="prod"'),
        (' { cluster = "prod" , team!~"a|b" , x!="", y=~".+", } ', 'cluster="prod",team!~"a|b",x!="",y=~".+"'),
        (r'a="say \"x\" \\d"', r'a="say \"x\" \\d"'),
        ('a="}{,"', 'a="}{,"'),
        ("", ""),
        ("{}", ""),
    ],
)
def test_valid_matchers_are_normalized(written: str, read: str):
    assert read_matchers(written) == read


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("prod", "no matcher at 'prod'"),
        ("cluster=prod", "no matcher at"),
        ("cluster='prod'", "no matcher at"),
        ('cluster="prod', "no matcher at"),
        ('cluster="prod"} or up{a="b"', "no comma at"),
        ('a="b" c="d"', "no comma at"),
        (',a="b"', "no matcher at"),
        ('a="b",,c="d"', "no matcher at"),
        ('__name__="up"', "__name__ names metrics"),
        (r'a=~"\d"', "a backslash before 'd'"),
        ('a="b\nc"', "cannot be printed"),
        ('k8s.cluster="x"', "no matcher at"),
        (",".join(f'a{number}="b"' for number in range(17)), "17 matchers"),
        ('a="' + "x" * MAX_CHARACTERS + '"', "characters"),
    ],
)
def test_the_fault_is_named_when_matchers_are_not_valid(written: str, message: str):
    with pytest.raises(ValueError, match=message):
        read_matchers(written)
