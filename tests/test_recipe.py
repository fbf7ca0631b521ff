"""A Recipe is checked when it is made, in one sentence."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from kmgpu import Recipe
from kmgpu.errors import UsageError


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"epoch": 3}, "Recipe has no 'epoch' (did you mean 'epochs'?); it has model, train, validation, batch_size"),
        ({"epochs": 0}, "the recipe's epochs is 0; it must be a whole number of at least 1"),
        ({"batch_norm": "local"}, "batch_norm is 'local'; it is 'global' or 'replica'"),
    ],
)
def test_what_a_recipe_does_not_have_or_cannot_be_is_one_sentence(fields, said):
    with pytest.raises(UsageError) as raised:
        Recipe(None, train=None, **fields)
    assert str(raised.value).startswith(said)


def test_a_recipe_is_still_a_dataclass():
    recipe = Recipe("model", ("x", "y"), epochs=3)
    assert (recipe.model, recipe.train, recipe.epochs, recipe.batch_size) == ("model", ("x", "y"), 3, 32)
    assert dataclasses.replace(recipe, epochs=4).epochs == 4 and copy.copy(recipe) == recipe
