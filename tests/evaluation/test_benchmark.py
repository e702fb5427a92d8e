import pytest

from dapo_cli.errors import UsageError
from dapo_cli.evaluation import benchmark
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.resources import resource_folder

CARD = """
name: mine
description: d
problems: heldout
sampling: {temperature: 1.0, top_p: 0.7, top_k: 0, min_p: 0.0, max_response_tokens: null}
"""


@pytest.fixture
def card(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "resource_folder", lambda kind: tmp_path)

    def write(text):
        (tmp_path / "mine.yaml").write_text(text)
        return load_benchmark("mine")

    return write


def test_every_shipped_card_loads():
    names = [path.stem for path in resource_folder("evals").glob("*.yaml")]
    assert "heldout" in names
    assert [load_benchmark(name).name for name in names] == names


def test_heldout_samples_as_the_paper_evaluates():
    sampling = load_benchmark("heldout").resolve_sampling(48, (2, 3), ("\n\n",))
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0.7, 0, 0.0)
    assert (sampling.max_response_tokens, sampling.stop_token_ids, sampling.stop_strings) == (48, (2, 3), ("\n\n",))
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)


def test_unknown_benchmark_names_the_cards():
    with pytest.raises(UsageError, match=r"no card evals/aime\.yaml") as caught:
        load_benchmark("aime")
    assert "heldout" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("top_p: 0.7", "top_p: 1.7", r"sampling\.top_p: .*less than or equal to 1, got 1\.7"),
        ("top_p: 0.7, ", "", r"sampling\.top_p: Field required"),
        ("top_k: 0", "top_k: '0'", r"sampling\.top_k: .*integer"),
        ("description: d", "decsription: d", r"decsription: Extra inputs"),
        ("problems: heldout", "problems: other", r"problems: Input should be 'heldout'"),
        ("name: mine", "name: yours", r"must be the file's name 'mine', got 'yours'"),
        ("name: mine", "name: [", r"not valid YAML"),
    ],
)
def test_bad_cards_are_refused_by_key(card, old, new, message):
    with pytest.raises(UsageError, match=message):
        card(CARD.replace(old, new))
