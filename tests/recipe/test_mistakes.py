# ruff: noqa: E501 (a case and its message on one line)
"""What a recipe can get wrong, each with the message it is answered by."""

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.recipe.loading import load_recipe

STEPS = "expected a whole number greater than 0"
SECTIONS = "model, dataset, prompt, rollout, reward, dynamic_sampling, advantage, train, preflight, eval, checkpoint, tracking, backend"
HEADS = SECTIONS.replace(",", ":,") + ":"


def message(write_recipe, *edits, overrides=(), **file):
    """The message by which the edited recipe is refused."""
    with pytest.raises(UsageError) as caught:
        load_recipe(write_recipe(*edits, **file), overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "  clip_ratio_hgih: 0.3\n", "x.yaml:15: train.clip_ratio_hgih: unknown key; did you mean clip_ratio_high?"),
        ("", "  group_size: 3\n", "x.yaml:15: train.group_size: unknown key; did you mean rollout.group_size?"),
        ("", "eval: {quick: 1}\n", "x.yaml:15: eval.quick: unknown key; known are benchmark, files, samples, final_samples, max_response_tokens, model, engine, tensor_parallel, problems, every, before_training, after_training"),
        ("", "trian: {steps: 3}\n", "x.yaml:15: trian: unknown section; did you mean train?"),
        ("", "<<: {steps: 3}\n", f"x.yaml:15: <<: unknown section; known are {SECTIONS}"),
        ("steps: 10", "steps: ten", f"x.yaml:9: train.steps: {STEPS}, got 'ten'"),
        ("steps: 10", "steps: '10'", f"x.yaml:9: train.steps: {STEPS}, got '10'; write it without quotes"),
        ("steps: 10", "steps: 1e1", f"x.yaml:9: train.steps: {STEPS}, got 10.0; write 10"),
        ("steps: 10", "steps: 0", f"x.yaml:9: train.steps: {STEPS}, got 0"),
        ("steps: 10", "steps: true", f"x.yaml:9: train.steps: {STEPS}, got true"),
        ("steps: 10", "steps:", f"x.yaml:9: train.steps: {STEPS}, got null"),
        ("steps: 10", "steps: [10]", f"x.yaml:9: train.steps: {STEPS}, got a list"),
        ("steps: 10", "steps: {all: 10}", f"x.yaml:9: train.steps: {STEPS}, got a section"),
        ("1e-6", ".inf", "x.yaml:14: train.learning_rate: not a finite number: '.inf'"),
        ("1e-6", "1e999", "x.yaml:14: train.learning_rate: not a finite number: '1e999'"),
        ("1e-6", "1" + "0" * 400, "x.yaml:14: train.learning_rate: expected a number greater than 0 and of at most 1e+09, got 1" + "0" * 55 + " ..."),
        ("  steps: 10\n", "", "x.yaml:8: train.steps: required key is missing (Rollout steps)"),
        ("model: {path: toy}\n", "", "x.yaml: model: required section is missing (The policy: which weights, in which precision)"),
        ("model: {path: toy}", "model:", "x.yaml:1: model: expected a section (lines of key: value, indented under model:), got null"),
        ("model: {path: toy}", "model: toy", "x.yaml:1: model: expected a section (lines of key: value, indented under model:), got 'toy'"),
        ("", "  steps: 11\n", "x.yaml:15: train.steps: given twice, first on line 9; keep one"),
        ("", "model: {path: gpt2}\n", "x.yaml:15: model: given twice, first on line 1; keep one"),
        ("", "tracking: {wandb: false}\n", "x.yaml:15: tracking.wandb: expected one of off, offline, online, got false"),
        ("", "tracking: {rollouts: smple}\n", "x.yaml:15: tracking.rollouts: expected one of all, sample, none, got 'smple'; did you mean sample?"),
        ("", "reward: {overlong_filter: yes}\n", "x.yaml:15: reward.overlong_filter: expected true or false, got 'yes'; write true"),
        ("", "reward: {response_prefix: 3}\n", "x.yaml:15: reward.response_prefix: expected text, got 3; put it in quotes"),
        ("", "checkpoint: {keep_last: none}\n", "x.yaml:15: checkpoint.keep_last: expected a whole number greater than 0, or all, got 'none'"),
        ("", "  clip_ratio_low: 1.5\n", "x.yaml:15: train.clip_ratio_low: expected a number greater than 0 and less than 1, got 1.5"),
        ("", "  dual_clip_ratio: 1\n", "x.yaml:15: train.dual_clip_ratio: expected a number greater than 1, or null, got 1"),
        ("", "  emulated_partition: 3\n", "x.yaml:15: train.emulated_partition: expected a section, or null, got 3"),
        ("", "  emulated_partition: {ranks: 3}\n", "x.yaml:15: train.emulated_partition.tokens_per_microbatch: required key is missing (Token budget of an emulated micro-batch)"),
        ("", "prompt:\n  few_shot:\n  - problem: a\n", "x.yaml:17: prompt.few_shot[0].answer: required key is missing (The response the model should imitate)"),
        ("", "prompt:\n  few_shot:\n  - {problem: a, answer: 3}\n", "x.yaml:17: prompt.few_shot[0].answer: expected text, got 3; put it in quotes"),
        ("group_size: 8", "stop_strings: [a, 1]", "x.yaml:4: rollout.stop_strings[1]: expected text, got 1; put it in quotes"),
        ("group_size: 8", "stop_token_ids: [-1]", "x.yaml:4: rollout.stop_token_ids: expected generation_config, or a list of whole numbers of at least 0, got a list"),
        ("", "prompt: {system: !me x}\n", "x.yaml:15: prompt.system: the YAML tag !me is not supported here"),
        ("", "prompt: &a {template_arguments: {x: *a}}\n", "x.yaml:15: prompt.template_arguments.x: an alias that contains itself"),
        ("", "? [a]\n: 3\n", "x.yaml:15: a key must be a word, got a list or a section"),
        ("", 'prompt: {system: "\\ud800"}\n', "x.yaml:15: prompt.system: text with half of a surrogate pair, which is not valid Unicode"),
        ("", "\tx: 3\n", "x.yaml:15: not valid YAML: found character '\\t' that cannot start any token"),
        ("", "---\na: 3\n", "x.yaml:15: not valid YAML: expected a single document in the stream but found another document"),
        ("", "extends: [demo]\n", "x.yaml:15: extends: expected the path or packaged name of one recipe, got a list"),
        ("", "resolved: no\n", "x.yaml:15: resolved: expected true"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_file_line_and_key(write_recipe, old, new, expected):
    assert message(write_recipe, (old, new)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", f"x.yaml: the file is empty; a recipe has the sections {HEADS} or extends another"),
        ("# nothing\n", f"x.yaml: the file is empty; a recipe has the sections {HEADS} or extends another"),
        ("- a\n", f"x.yaml:1: expected the sections {HEADS} or extends, got a list"),
        ("[" * 1000, "x.yaml: nested too deeply for a recipe"),
        ("extends: x.yaml\n", "x.yaml:1: extends: a recipe cannot extend itself: x.yaml -> x.yaml"),
        ("\nextends: dmo\n", "x.yaml:2: extends: dmo: neither a file nor a packaged recipe; did you mean demo?"),
        ("extends: dmo.yaml\n", "x.yaml:1: extends: dmo.yaml: no such file; did you mean demo?"),
    ],
)
def test_a_file_that_is_no_recipe(write_recipe, text, expected):
    assert message(write_recipe, text=text) == expected


def test_a_file_that_is_not_text(write_recipe, tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"model: \xff")
    with pytest.raises(UsageError, match=r"^x\.yaml: not UTF-8 text \(invalid start byte at byte 7\)$"):
        load_recipe("x.yaml")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.steps=abc", f"--set train.steps=abc: train.steps: {STEPS}, got 'abc'"),
        ("train.stepz=1", "--set train.stepz=1: train.stepz: unknown key; did you mean steps?"),
        ("trian.steps=1", "--set trian.steps=1: trian: unknown section; did you mean train?"),
        ("train.steps.x=1", f"--set train.steps.x=1: train.steps: {STEPS}, got a section"),
        ("train.steps=[", "--set train.steps=[: train.steps: the value is not valid YAML; quote it"),
        ("train.steps=.inf", "--set train.steps=.inf: train.steps: not a finite number: '.inf'"),
        ("train.steps", "--set train.steps: expected section.key=value, such as train.steps=10"),
        ("train={steps: 3}", "--set train={steps: 3}: expected section.key=value, such as train.steps=10"),
        ("train.=3", "--set train.=3: expected section.key=value, such as train.steps=10"),
        ("model.path=", "--set model.path=: model.path: expected text, got null"),
        ("train.prompts_per_minibatch=7", "--set train.prompts_per_minibatch=7: train.prompts_per_minibatch: minibatches of 7 prompts do not divide a step of 32 prompts; use one of 1, 2, 4, 8, 16, 32"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_named_as_it_was_given(write_recipe, override, expected):
    assert message(write_recipe, overrides=[override]) == expected


def test_all_mistakes_are_reported_at_once_in_the_order_of_lines_then_overrides(write_recipe):
    edits = [("steps: 10", "steps: ten\n  steps: 3"), ("group_size: 8", "group_sze: 8"), ("", "reward: 3\n")]
    assert message(write_recipe, *edits, overrides=["model.path=3", "x"]).splitlines() == [
        "x.yaml:4: rollout.group_sze: unknown key; did you mean group_size?",
        f"x.yaml:9: train.steps: {STEPS}, got 'ten'",
        "x.yaml:10: train.steps: given twice, first on line 9; keep one",
        "x.yaml:16: reward: expected a section (lines of key: value, indented under reward:), got 3",
        "--set x: expected section.key=value, such as train.steps=10",
        "--set model.path=3: model.path: expected text, got 3; put it in quotes",
    ]


def test_a_mistake_of_a_parent_is_named_in_the_parent(write_recipe):
    write_recipe(("steps: 10", "steps: ten"), name="parents/base.yaml")
    text = "extends: parents/base.yaml\ntrain:\n  learning_rat: 1\n"
    assert message(write_recipe, text=text, name="child.yaml").splitlines() == [
        f"parents/base.yaml:9: train.steps: {STEPS}, got 'ten'",
        "child.yaml:3: train.learning_rat: unknown key; did you mean learning_rate?",
    ]


def test_a_cycle_of_parents_is_named(write_recipe):
    write_recipe(text="extends: ../b.yaml\n", name="sub/a.yaml")
    expected = "sub/a.yaml:1: extends: a recipe cannot extend itself: b.yaml -> sub/a.yaml -> b.yaml"
    assert message(write_recipe, text="extends: sub/a.yaml\n", name="b.yaml") == expected


def test_no_message_speaks_of_pydantic(write_recipe):
    text = "model: {path: 1}\ntrain: {steps: [], foo: 1, clip_ratio_low: x}\ntracking: {wandb: 1}\n"
    words = message(write_recipe, text=text)
    assert not any(
        jargon in words for jargon in ("pydantic", "http", "input_", "tuple", "dict", "Literal", "validation")
    )
