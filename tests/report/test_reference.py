"""Histories exported from wandb."""

import json

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.report.reference import load_reference

EXPECTED = [
    {"step": 1.0, "update/entropy": 0.5, "eval/math_dapo/avg@32": 0.25},
    {"step": 2.0, "update/entropy": 0.75},
]


def test_csv_of_the_web_page(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(
        '"Step","32B - actor/entropy","32B - actor/entropy__MIN","32B - val-core/math_dapo/acc/mean@32","other"\n'
        '"2","0.75","0.7","","x"\n"1","0.5","0.5","0.25","x"\n'
    )
    rows, unknown = load_reference(path)
    assert rows == EXPECTED
    assert unknown == ["32B - actor/entropy__MIN", "other"]


@pytest.mark.parametrize("lines", [True, False])
def test_json_of_the_api(tmp_path, lines):
    history = [
        {"_step": 1, "actor/entropy": 0.5, "val-core/math_dapo/acc/mean@32": 0.25, "perf/mfu/actor": 0.4},
        {"_step": 2, "actor/entropy": 0.75, "val-core/math_dapo/acc/mean@32": None},
        {"_step": 3, "actor/entropy": "NaN"},
    ]
    path = tmp_path / "history.json"
    path.write_text("\n".join(map(json.dumps, history)) if lines else json.dumps(history))
    assert load_reference(path) == (EXPECTED, ["perf/mfu/actor"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "actor/entropy\n0.5\n", "no step column; columns: actor/entropy"),
        ("a.csv", "Step,other\n1,2\n", "none of its columns is a metric of verl; got Step, other"),
        ("a.csv", "Step,actor/entropy\n", "there are no rows"),
        ("a.json", '{"_step": 1}\n{torn', r"a\.json:2: not valid JSON"),
        ("a.json", "[1]", "row 1 is not an object"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        load_reference(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.csv: No such file"):
        load_reference(tmp_path / "none.csv")
