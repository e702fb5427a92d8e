import yaml

from dapo_cli.export.model_card import model_card

PROVENANCE = {
    "base_model": "toy",
    "step": 40,
    "dataset_hash": "abc",
    "contaminated": False,
    "evaluation": {"eval/heldout/avg@4": 0.96875, "samples": 4},
}


def test_the_card_lists_what_it_is_given():
    card = model_card("demo", PROVENANCE)
    for line in ("# demo", "- base model: toy", "- step: 40", "- dataset hash: abc", "## evaluation"):
        assert line in card.splitlines()
    assert "- eval/heldout/avg@4: 0.9688" in card.splitlines()
    assert "CONTAMINATED" not in card


def test_the_front_matter_is_yaml():
    assert yaml.safe_load(model_card("demo", PROVENANCE).split("---")[1])["library_name"] == "transformers"


def test_contamination_is_announced():
    assert "**CONTAMINATED**" in model_card("demo", {**PROVENANCE, "contaminated": True})
