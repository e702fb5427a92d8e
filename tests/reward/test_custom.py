import math

import numpy as np
import pytest

from dapo_cli.reward.custom import judge, load, read_result


@pytest.mark.parametrize(
    ("returned", "outcome", "score"),
    [
        (True, "right", 1.0),
        (False, "wrong", -1.0),
        (np.bool_(True), "right", 1.0),
        (1, "right", 1.0),
        (0, "wrong", 0.0),
        (np.float32(0.5), "right", 0.5),
        (-2.5, "wrong", -2.5),
        ({"score": 0.5, "correct": False}, "wrong", 0.5),
        ({"score": -1.0, "prediction": None}, "no_answer", -1.0),
        ({"score": True, "prediction": "x"}, "right", 1.0),
    ],
)
def test_what_may_be_returned(returned, outcome, score):
    result = read_result(returned)
    assert (result["outcome"], result["score"]) == (outcome, score)


@pytest.mark.parametrize(
    "returned",
    [None, "1.0", math.nan, math.inf, [1.0], {}, {"correct": True}, {"score": 1, "acc": 1}, {"score": 1, "correct": 1},
     {"score": 1, "prediction": 7}],
)  # fmt: skip
def test_anything_else_is_refused(returned):
    with pytest.raises(ValueError, match=r"want a bool|a dict needs|must be"):
        read_result(returned)


def test_the_function_is_found_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "folder_scorer.py").write_text(
        "def score(response, ground_truth, problem):\n    return problem['text'] in response\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert judge("folder_scorer:score", "a cat sat", "", {"text": "cat"})["outcome"] == "right"
    with pytest.raises(ImportError, match=r"folder_scorer.py\) has no function other; it has score$"):
        load("folder_scorer:other")


def test_a_module_that_is_not_there_is_told_from_one_that_misses_something(tmp_path, monkeypatch):
    (tmp_path / "folder_importer.py").write_text("import no_such_library_anywhere\n")
    (tmp_path / "folder_named.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=r"no no_such_module/inside.py in .*, and no installed module"):
        load("no_such_module.inside:score")
    with pytest.raises(ImportError, match="want a module and a function, folder_named:FUNCTION, got a file name"):
        load("folder_named.py:score")
    with pytest.raises(ImportError, match=r"^No module named 'no_such_library_anywhere'$"):
        load("folder_importer:score")


@pytest.mark.parametrize("module", ["json", "sys"])
def test_a_file_with_the_name_of_another_module_is_not_passed_over_in_silence(tmp_path, monkeypatch, module):
    (tmp_path / f"{module}.py").write_text("def score(response, ground_truth, problem):\n    return True\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=f"{module}.py in the working folder is not read, .*: rename it"):
        load(f"{module}:score")
