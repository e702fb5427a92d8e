"""`dapo infer` from its options to what it prints and keeps."""

import io
import json
import os
import signal

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.inference import command
from dapo_cli.inference.command import default_out, run_inference
from dapo_cli.inference.options import InferenceOptions
from dapo_cli.inference.screen import printable


@pytest.fixture
def infer(tmp_path, monkeypatch):
    """Runs `dapo infer` on the untrained toy model; returns (result, what was printed, notes)."""
    monkeypatch.chdir(tmp_path)

    def run(stdin="", **options):
        out, notes = io.StringIO(), []
        values = {"recipe": "demo", "model": str(toy_folder(tmp_path)), "max_response_tokens": 12, **options}
        result = run_inference(InferenceOptions(**values), notes.append, out, io.StringIO(stdin))
        return result, out.getvalue(), notes

    return run


def toy_folder(tmp_path):
    """The untrained toy model as a folder."""
    from dapo_cli.toy.model import new_toy_model

    folder = tmp_path / "toy"
    if not folder.exists():
        model, tokenizer = new_toy_model(0)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def test_one_problem_shows_prompt_response_answer_verdict_and_speed(infer):
    result, printed, notes = infer(problem="What is 1 + 2?", gold="3")
    [record] = result.responses
    assert printed.startswith("--- prompt: template dapo, format chat, ")
    assert "What is 1 + 2?" in printed
    assert record["response"] in printed
    assert f"verdict: {record['outcome']}, score {1 if record['outcome'] == 'right' else -1:+d}" in printed
    assert "tokens/s" in printed
    assert any("temperature 1.0, top_p 0.7" in note and "seed 0" in note for note in notes)
    assert (result.asked, result.out, result.interrupted) == (1, None, False)


def test_without_the_right_answer_it_is_extracted_and_not_judged(infer):
    result, printed, _ = infer(stdin="What is 1 + 2?\n")
    assert result.responses[0]["outcome"] is None
    assert "answer: " in printed
    assert "verdict" not in printed


def test_a_response_depends_on_seed_problem_and_sample_alone(infer):
    first, _, _ = infer(problem="What is 1 + 2?", samples=3)
    texts = [record["response"] for record in first.responses]
    assert len(set(texts)) > 1
    assert [r["response"] for r in infer(problem="What is 1 + 2?", samples=2)[0].responses] == texts[:2]
    assert [r["response"] for r in infer(problem="What is 1 + 2?", samples=3, seed=1)[0].responses] != texts


@pytest.fixture
def file(tmp_path):
    rows = [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(4)]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_is_answered_in_order_and_kept(infer, file):
    result, printed, notes = infer(file=file, samples=2)
    assert result.out.name.startswith("sums_")
    lines = [json.loads(line) for line in result.out.read_text().splitlines()]
    assert sorted((line["problem"], line["sample"]) for line in lines) == [
        (f"What is {n} + 1?", sample) for n in range(4) for sample in range(2)
    ]
    assert [record["gold"] for record in result.responses] == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert printed.splitlines()[-1].startswith("8 of 8: ")
    assert any("problems from column question, answers from answer" in note for note in notes)


def test_what_was_interrupted_goes_on_to_the_same_responses(infer, file, tmp_path, monkeypatch):
    whole, _, _ = infer(file=file, out=tmp_path / "whole.jsonl")
    judge, ended = command.judge, []

    def ask_to_stop(response, reward):
        ended.append(response)
        if len(ended) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return judge(response, reward)

    monkeypatch.setattr(command, "judge", ask_to_stop)
    torn = tmp_path / "torn.jsonl"
    stopped, printed, _ = infer(file=file, out=torn, overrides=("rollout.max_concurrent_rollouts=1",))
    assert stopped.interrupted
    kept = len(torn.read_text().splitlines())
    assert (len(stopped.responses), printed.count(" of 4: ")) == (kept, kept)
    assert 2 <= kept < 4
    monkeypatch.setattr(command, "judge", judge)
    with torn.open("a") as unfinished:
        unfinished.write('{"problem_id": "ha')
    again, printed, notes = infer(file=file, out=torn)
    assert any(f"{kept} of 4 responses are there already" in note for note in notes)
    fields = ("problem_id", "sample", "seed", "response", "outcome", "finish_reason")
    assert [[r[f] for f in fields] for r in again.responses] == [[r[f] for f in fields] for r in whole.responses]
    assert printed.splitlines()[0].startswith(f"{kept + 1} of 4: ")


def test_responses_of_other_settings_are_not_taken_for_these(infer, file, tmp_path):
    infer(file=file, out=tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match=r"out\.jsonl:1: this response was sampled with another sampling"):
        infer(file=file, out=tmp_path / "out.jsonl", temperature=0.5)


def test_control_characters_do_not_steer_a_terminal():
    assert printable("a\x1b[2Jb\r") == "a\\x1b[2Jb\\r"


def test_output_files_are_named_after_file_and_weights(tmp_path):
    assert default_out(tmp_path / "a.b.jsonl", "org/name").name == "a.b_org_name.jsonl"
