import json
from dataclasses import replace

from fake_evaluation import SETTINGS_OF_FAKE, Fake, write_fake

from dapo_cli.evaluation.curve import curve, write_curve
from dapo_cli.run.directory import RunDirectory


def test_evaluations_are_put_in_the_order_of_their_steps(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (10, 0, 5):
        settings = replace(SETTINGS_OF_FAKE, model=f"{tmp_path}@{step}", samples=2)
        write_fake(run.evals / f"aime_2024_avg2_step_{step}", Fake(problems=3, settings=settings))
    other = replace(SETTINGS_OF_FAKE, model="another#abc", samples=2)
    write_fake(run.evals / "another", Fake(problems=3, settings=other))
    (run.evals / "unfinished").mkdir()
    assert [step for step, _ in curve(run)] == [0, 5, 10]
    table = write_curve(run)
    lines = [json.loads(line) for line in (run.evals / "curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 5, 10]
    assert lines[0]["eval/aime_2024/avg@2"] == curve(run)[0][1].avg_at_n
    assert table.row_count == 3
