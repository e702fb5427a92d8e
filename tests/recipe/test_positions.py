"""YAML values as YAML 1.2 reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.recipe.positions import parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("1E6", 1e6),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2.5e+3", -2500.0),
        ("10", 10),
        ("+10", 10),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2025-05-01", "2025-05-01"),
        ("e6", "e6"),
        ("'1e-6'", "1e-6"),
        ("!!str 1", "1"),
        ("[1, a, {b: c}]", [1, "a", {"b": "c"}]),
    ],
)
def test_a_value_is_read_as_yaml_1_2(text, value):
    read = parse_yaml(text, "x.yaml").value
    assert read == value
    assert type(read) is type(value)


def test_the_line_of_every_key_and_item_is_kept():
    document = parse_yaml("a:\n  b: 1\n\n  c:\n  - x\n  - y: 2\n", "x.yaml")
    assert document.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 4,
        ("a", "c", "0"): 5,
        ("a", "c", "1"): 6,
        ("a", "c", "1", "y"): 6,
    }


def test_an_anchor_may_be_used_again():
    assert parse_yaml("a: &x [1]\nb: *x\n", "x.yaml").value == {"a": [1], "b": [1]}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_that_python_prints_is_read_back(number):
    assert parse_yaml(repr(number), "x.yaml").value == number
