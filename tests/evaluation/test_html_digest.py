from dataclasses import replace

from fake_evaluation import SETTINGS_OF_FAKE, Fake, fake_record, write_fake

from dapo_cli.evaluation.html_digest import SHOWN_RESPONSES, choose_problems, choose_samples, read_digest, read_response


def test_chosen_responses_are_of_every_kind_and_of_different_answers(tmp_path):
    digest = read_digest(write_fake(tmp_path, Fake()))
    chosen = choose_problems(digest.problems)
    assert sorted(chosen) == list(range(30))
    assert [digest.problems[i].num_correct for i in chosen] == sorted(p.num_correct for p in digest.problems)
    total = 0
    for index in chosen:
        problem = digest.problems[index]
        samples = choose_samples(problem, len(chosen))
        total += len(samples)
        assert {each.kind for each in samples} == {each.kind for each in problem.samples}
        assert [each.record.sample for each in samples] == sorted({each.record.sample for each in samples})
    assert total == SHOWN_RESPONSES
    assert read_response(tmp_path, samples[-1]) == fake_record(Fake(), chosen[-1], samples[-1].record.sample).response


def test_a_tie_gives_all_and_having_no_answer_counts(tmp_path):
    answers = ("7", "7", None, None)
    fake = Fake(problems=1, settings=replace(SETTINGS_OF_FAKE, samples=4))
    folder = write_fake(tmp_path, fake, lambda record: replace(record, prediction=answers[record.sample]))
    assert read_digest(folder).problems[0].majority() == [("7", 2), (None, 2)]
