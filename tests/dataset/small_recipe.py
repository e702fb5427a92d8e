"""A recipe with only the sections that must be there, for tests of preparation."""

from typing import Any

from dapo_cli.recipe.schema import Dataset, DynamicSampling, Model, Prompt, Recipe, Rollout, Train


def small_recipe(template: str = "dapo", **dataset: Any) -> Recipe:
    """A valid recipe with the given dataset section and prompt template."""
    return Recipe(
        model=Model(path="toy"),
        dataset=Dataset(**dataset),
        prompt=Prompt(template=template),
        rollout=Rollout(max_response_tokens=32),
        dynamic_sampling=DynamicSampling(max_drawn_problems=10),
        train=Train(
            steps=1, prompts_per_step=2, prompts_per_minibatch=1, tokens_per_microbatch=100, learning_rate=1e-3
        ),
    )
