"""Packaged files are found in a checkout and in an installed wheel, and nobody else's are taken for them."""

import pytest

from dapo_cli import resources
from dapo_cli.errors import DapoError
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.packaged import packaged_names


@pytest.fixture
def site_packages(tmp_path, monkeypatch):
    """A folder that dapo_cli seems to be installed in, without its resources."""
    (tmp_path / "dapo_cli").mkdir()
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "dapo_cli" / "resources.py"))
    return tmp_path


def test_a_checkout_has_them_beside_the_package():
    for kind in ("recipes", "data", "evals"):
        assert resources.resource_folder(kind).parent.joinpath("pyproject.toml").is_file()
    assert {"demo", "toy/naive_grpo", "smollm2_135m_sums", "smollm2_135m_gsm8k"} <= set(packaged_names())


def test_an_installed_package_has_them_inside(site_packages, write_recipe, monkeypatch):
    write_recipe(name="dapo_cli/_resources/recipes/base.yaml")
    text = "extends: ../base.yaml\ntrain: {steps: 3}\n"
    write_recipe(text=text, name="dapo_cli/_resources/recipes/small/short.yaml")
    monkeypatch.chdir("/")
    assert packaged_names() == ["base", "small/short"]
    loaded = load_recipe("small/short")
    assert (loaded.name, loaded.packaged, loaded.recipe.train.steps) == ("short", True, 3)


def test_a_folder_of_somebody_else_is_not_taken(site_packages):
    (site_packages / "data").mkdir()
    with pytest.raises(DapoError, match="the packaged data are missing from this installation"):
        resources.resource_folder("data")
