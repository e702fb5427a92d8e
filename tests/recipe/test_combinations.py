# ruff: noqa: E501 (a case and its message on one line)
"""Settings that are fine alone and impossible together."""

import time

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.recipe.combinations import combination_problems
from dapo_cli.recipe.contradiction import Problem
from dapo_cli.recipe.loading import load_recipe

NO_ADVANTAGE = (
    "a group of 1 has no advantage: its reward minus the group's mean is always 0; use at least 2, 16 in the paper"
)
NEVER_BEST = "no checkpoint before the last is of a step with an evaluation, so none can be called the best"


def message(write_recipe, *edits, overrides=(), **file):
    """The message by which the edited recipe is refused."""
    with pytest.raises(UsageError) as caught:
        load_recipe(write_recipe(*edits, **file), overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "reward: {overlong_buffer_length: 33}\n", "x.yaml:15: reward.overlong_buffer_length: a buffer of 33 tokens is longer than the longest response (32 tokens): all would be punished; use at most 32; the paper's is a fifth of the limit"),
        ("", "reward: {scorer: mathverify}\n", "x.yaml:15: reward.scorer: 'mathverify' is neither dapo, dapo_2026_08, boxed, integer, math_verify nor module:function; did you mean math_verify?"),
        ("", "reward: {scorer: []}\n", "x.yaml:15: reward.scorer: a list of scorers is not empty and has none twice; name each once"),
        ("", "reward: {scorer: [dapo, dapo]}\n", "x.yaml:15: reward.scorer: a list of scorers is not empty and has none twice; name each once"),
        ("", "reward: {scorer: boxed}\n", "x.yaml:15: reward.scorer: the prompt asks for Answer: and the scorer reads only \\boxed: every answer would be missed; use one of dapo, dapo_2026_08, integer, math_verify, or another template"),
        ("", "prompt: {template: '{problem} Put it in \\boxed{}.'}\n", "x.yaml:15: prompt.template: the prompt asks for \\boxed and the scorer reads only Answer:: every answer would be missed; use one of dapo_2026_08, boxed, integer, math_verify, or another template"),
        ("minibatch: 8", "minibatch: 7", "x.yaml:11: train.prompts_per_minibatch: minibatches of 7 prompts do not divide a step of 32 prompts; use one of 1, 2, 4, 8, 16, 32"),
        ("group_size: 8", "group_size: 1", f"x.yaml:4: rollout.group_size: {NO_ADVANTAGE}"),
        ("group_size: 8", "top_p: 0.7", "x.yaml:4: rollout.top_p: 0.7 samples from another distribution than the one that is trained; use 1.0 here; evaluation has its own top_p"),
        ("group_size: 8", "stop_strings: ['']", "x.yaml:4: rollout.stop_strings: an empty text would end every response at once; remove it"),
        ("problems: 320", "problems: 320\n  max_correct: 8", "x.yaml:8: dynamic_sampling.max_correct: 8 right answers of 8: such a group is all right or all wrong and teaches nothing; use 1 to 7, or -1 for 7"),
        ("problems: 320", "problems: 320\n  max_correct: 0", "x.yaml:8: dynamic_sampling.max_correct: 0 right answers of 8: such a group is all right or all wrong and teaches nothing; use 1 to 7, or -1 for 7"),
        ("problems: 320", "problems: 320\n  min_correct: 8", "x.yaml:8: dynamic_sampling.min_correct: no group has at least 8 and at most 7 right answers of 8; use 1 to 7 for min_correct"),
        ("problems: 320", "problems: 31", "x.yaml:7: dynamic_sampling.max_drawn_problems: 31 problems can never fill a step of 32 groups; use at least 32; 10 times as many (320) is usual"),
        ("problems: 320", "problems: 320\n  refill: whole_batches", "x.yaml:8: dynamic_sampling.refill: refill: whole_batches needs the number of problems of a batch; the public script used 3 times prompts_per_step, here 96"),
        ("problems: 320", "problems: 320\n  refill: whole_batches\n  problems_per_batch: 96", "x.yaml:7: dynamic_sampling.max_drawn_problems: 320 is not a whole number of batches of 96 problems; use a multiple of 96"),
        ("batch: 4096", "batch: 2079", "x.yaml:12: train.tokens_per_microbatch: a micro-batch of 2079 tokens cannot hold the longest prompt and response, 2080 tokens; use at least 2080, or lower max_prompt_tokens or max_response_tokens"),
        ("", "prompt: {template: dpao}\n", "x.yaml:15: prompt.template: 'dpao' is none of dapo, boxed, problem and no text that contains {problem}; put {problem} where the problem goes"),
        ("", "  loss_denominator: microbatch\n", "x.yaml:15: train.loss_denominator: loss_denominator: microbatch depends on the machine whose micro-batches are emulated; add emulated_partition: {ranks: ..., tokens_per_microbatch: ...}, or use minibatch"),
        ("", "  loss_denominator: microbatch\n  emulated_partition: {ranks: 3, tokens_per_microbatch: 2080}\n", "x.yaml:16: train.emulated_partition.ranks: 64 rollouts per update (prompts_per_minibatch x group_size) do not divide among 3 ranks; use a divisor of 64"),
        ("", "  loss_denominator: microbatch\n  emulated_partition: {ranks: 2, tokens_per_microbatch: 2079}\n", "x.yaml:16: train.emulated_partition.tokens_per_microbatch: a micro-batch of 2079 tokens cannot hold the longest prompt and response, 2080 tokens; use at least 2080, or lower max_prompt_tokens or max_response_tokens"),
        ("{name: toy_sums}", "{name: toy_sums, heldout_problems: 0}", "x.yaml:2: dataset.heldout_problems: eval.benchmark: heldout has no problems to evaluate when none are set apart; set some apart, name another benchmark, or turn before_training, after_training and every off"),
        ("", "checkpoint: {every: 3, keep_best: 1}\n", f"x.yaml:15: checkpoint.keep_best: {NEVER_BEST}; use a multiple of 3 for eval.every, below 10, or the reverse"),
        ("", "eval: {every: 4}\ncheckpoint: {every: 3, keep_best: 1}\n", f"x.yaml:16: checkpoint.keep_best: {NEVER_BEST}; use a multiple of 3 for eval.every, below 10, or the reverse"),
        ("", "eval: {every: 2}\ncheckpoint: {every: 5, keep_best: 1}\n", f"x.yaml:16: checkpoint.keep_best: {NEVER_BEST}; use a multiple of 5 for eval.every, below 10, or the reverse"),
    ],
)  # fmt: skip
def test_an_impossible_combination_is_refused_with_a_way_out(write_recipe, old, new, expected):
    assert message(write_recipe, (old, new)) == expected


@pytest.mark.parametrize(
    "edit",
    [
        ("", "reward: {overlong_buffer_length: 32, overlong_filter: true}\n"),
        ("problems: 320", "problems: 32"),
        ("problems: 320", "problems: 1\n  enabled: false"),
        ("problems: 320", "problems: 320\n  min_correct: 7\n  max_correct: 7"),
        ("problems: 320", "problems: 288\n  refill: whole_batches\n  problems_per_batch: 96"),
        ("batch: 4096", "batch: 2080"),
        ("", "  loss_denominator: microbatch\n  emulated_partition: {ranks: 2, tokens_per_microbatch: 2080}\n"),
        ("", "prompt: {template: 'Q: {problem} {x}', format: plain}\n"),
        ("{name: toy_sums}", "{name: toy_sums, heldout_problems: 0}\neval: {after_training: false, before_training: false}"),
        ("", "eval: {every: 3}\ncheckpoint: {every: 3, keep_best: 1}\n"),
        ("", "eval: {every: 2}\ncheckpoint: {every: 3, keep_best: 1}\n"),
        ("", "checkpoint: {every: 3, keep_best: 1, best_metric: reward/mean}\n"),
    ],
)  # fmt: skip
def test_what_is_just_possible_is_accepted(write_recipe, edit):
    load_recipe(write_recipe(edit))


def test_a_problem_is_placed_where_the_last_of_its_keys_was_stated(write_recipe):
    write_recipe(name="base.yaml")
    child = "extends: base.yaml\ntrain:\n  prompts_per_step: 36\n"
    assert message(write_recipe, text=child, name="child.yaml") == (
        "child.yaml:3: train.prompts_per_step: minibatches of 8 prompts do not divide a step of 36 prompts; "
        "use one of 1, 2, 3, 4, 6, 9, 12, 18, 36"
    )


def test_all_combinations_are_reported_at_once(write_recipe):
    edits = [("group_size: 8", "group_size: 1"), ("minibatch: 8", "minibatch: 7")]
    lines = message(write_recipe, *edits, overrides=["rollout.top_p=0.5"]).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["x.yaml:4", "x.yaml:11", "--set rollout.top_p=0.5"]


def test_the_rules_are_a_pure_function_of_the_recipe(write_recipe):
    recipe = load_recipe(write_recipe()).recipe
    assert combination_problems(recipe) == []
    broken = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"top_p": 0.5})})
    (problem,) = combination_problems(broken)
    assert isinstance(problem, Problem)
    assert problem.key == "rollout.top_p"


@pytest.mark.parametrize(
    ("steps", "from_zero", "share"),
    [(2, "false", None), (1, "false", "50%"), (2, "true", "50%"), (1, "true", "0%"), (3, "true", None)],
)
def test_a_warm_up_that_never_ends_is_noted(write_recipe, steps, from_zero, share):
    overrides = [f"train.steps={steps}", f"train.warmup_from_zero={from_zero}"]
    expected = (
        f"train.warmup_steps: 2 of {steps} steps, so that the learning rate only reaches {share} of train.learning_rate"
    )
    assert load_recipe(write_recipe(), overrides).notes == ((expected,) if share else ())


@pytest.mark.parametrize(
    "keys",
    [
        "reward: {scorer: [boxed, dapo]}",
        "reward: {scorer: 'my.scorer:score'}",
        "reward: {scorer: boxed}\nprompt: {template: '{problem} Put it in \\boxed{}.'}",
        "reward: {scorer: boxed}\nprompt: {template: problem}",
        "prompt: {template: '{problem} Answer: X or \\boxed{X}'}",
    ],
)
def test_scorers_that_read_what_the_prompt_asks_for_are_accepted(write_recipe, keys):
    load_recipe(write_recipe(("", keys + "\n")))


def test_a_number_of_any_size_is_checked_at_once(write_recipe):
    started = time.monotonic()
    said = message(write_recipe, overrides=[f"train.prompts_per_step={2 * 10**30}", "train.prompts_per_minibatch=7"])
    assert "use one of 1, 2, 4, 5, 8, 10, " in said
    assert time.monotonic() - started < 10
