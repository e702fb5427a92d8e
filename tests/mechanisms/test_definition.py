"""The files of the mechanisms: all that are packaged are whole, and mistakes have their line."""

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.mechanisms.definition import find_mechanism, load_definition, mechanism_names
from dapo_cli.recipe.keys import leaf_values


@pytest.mark.parametrize("name", mechanism_names())
def test_a_packaged_mechanism_predicts_something_of_two_arms_that_differ_in_its_technique(name):
    definition = load_definition(find_mechanism(name))
    mechanism = definition.mechanism
    assert len(mechanism.prediction) > 80
    assert mechanism.paper.startswith("section 3.")
    assert mechanism.seeds >= 8
    baseline, treatment = leaf_values(definition.baseline), leaf_values(definition.treatment)
    different = [key for key in baseline if baseline[key] != treatment[key]]
    assert different in (
        ["train.clip_ratio_high"],
        ["dynamic_sampling.enabled"],
        ["train.loss_denominator"],
        ["reward.overlong_buffer_length"],
        ["reward.overlong_filter"],
    )


def test_an_unknown_mechanism_suggests_one():
    with pytest.raises(UsageError, match="did you mean dynamic_sampling"):
        find_mechanism("dynamic_samplin")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sign: lower", "sgin: lower", r":\d+: sgin: .*did you mean sign\?"),
        ("until: 0.8}", "until: 0.8, at_step: 3}", "until and at_step exclude each other"),
        ("seeds: 8", "seeds: 1", "seeds"),
        ("enabled: false", "enabeld: false", "enabeld"),
        ("kind: mixed_difficulty", "kind: other", "kind"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    text = find_mechanism("dynamic_sampling").read_text()
    assert old in text
    file = tmp_path / "mine.yaml"
    common = find_mechanism("dynamic_sampling").with_name("common.yaml")
    file.write_text(text.replace(old, new, 1).replace("extends: common.yaml", f"extends: {common}"))
    with pytest.raises(UsageError, match=message):
        load_definition(file)
