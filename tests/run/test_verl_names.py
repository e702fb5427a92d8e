"""Names that verl logs, typed from what its runs of DAPO show."""

from dapo_cli.run.verl_names import TO_VERL, from_verl, to_verl

ACTOR = ("entropy", "pg_loss", "pg_clipfrac", "ppo_kl", "pg_clipfrac_lower", "grad_norm", "lr")
STAGES = ("gen", "reward", "old_log_prob", "adv", "update_actor", "step", "testing", "save_checkpoint")
ENDS = ("mean", "max", "min")
VERL = {
    *(f"actor/{name}" for name in ACTOR),
    *(f"critic/{what}/{end}" for what in ("score", "rewards", "advantages") for end in ENDS),
    *(f"{what}/{end}" for what in ("response_length", "prompt_length") for end in (*ENDS, "clip_ratio")),
    *(f"timing_s/{stage}" for stage in STAGES),
    "training/global_step",
    "training/epoch",
    "rollout_corr/kl",
}


def test_every_name_is_one_that_verl_logs():
    assert set(TO_VERL.values()) <= VERL
    assert len(set(TO_VERL.values())) == len(TO_VERL)


def test_ours_are_documented_metrics():
    from test_rollout_metrics import documented_patterns

    patterns = documented_patterns()
    assert [name for name in TO_VERL if not any(pattern.fullmatch(name) for pattern in patterns)] == []


def test_both_clips_are_one_curve_and_the_score_is_the_reward():
    row = {"update/clip_fraction_low": 0.25, "update/clip_fraction_high": 0.5, "reward/mean_kept": -0.5}
    renamed = to_verl(row)
    assert renamed["actor/pg_clipfrac"] == 0.75
    assert renamed["critic/score/mean"] == renamed["critic/rewards/mean"] == -0.5
    assert renamed["dapo/update/clip_fraction_high"] == 0.5
    assert "actor/pg_clipfrac" not in to_verl({"update/clip_fraction_low": 0.25})


def test_names_go_there_and_back():
    assert {from_verl(verl): verl for verl in TO_VERL.values()} == TO_VERL
