"""New recipe files: copies of shipped ones that run at once, under a name of their own."""

import ast

import pytest

from kmgpu import recipe_card, scaffold
from kmgpu.errors import UsageError


def code_of(path):
    return ast.dump(ast.Module(ast.parse(path.read_text(encoding="utf-8")).body[1:], []))


@pytest.mark.parametrize("kind", scaffold.KINDS)
def test_a_new_recipe_is_the_code_of_the_shipped_one(tmp_path, kind):
    path, name = scaffold.new("my_recipe", kind, folder=tmp_path)
    assert path == tmp_path / "my_recipe.py" and name == scaffold.KINDS[kind]
    assert code_of(path) == code_of(recipe_card.find_recipe(name)), "which the contract runs on every backend"
    card = recipe_card.card(path)
    assert card.summary == "My recipe: what it learns, in one line." and f"kmgpu's {name}" in card.doc
    assert card.settings == recipe_card.card(recipe_card.find_recipe(name)).settings


def test_every_shipped_recipe_can_be_begun_with(tmp_path):
    for number, card in enumerate(recipe_card.shipped()):
        assert scaffold.new(f"copy_{number}.py", card.name, folder=tmp_path)[1] == card.name


def test_what_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "there.py").write_text("mine")
    with pytest.raises(UsageError, match=r"there.py exists; choose another name"):
        scaffold.new("there", folder=tmp_path)
    assert (tmp_path / "there.py").read_text() == "mine"
    with pytest.raises(UsageError, match=r"--from is 'cnm' \(did you mean 'cnn'\?\); it is mlp, cnn, "):
        scaffold.new("other", "cnm", folder=tmp_path)
    for name in ("my-recipe", "class", "2nd", "a/b"):
        with pytest.raises(UsageError, match="a recipe cannot be called"):
            scaffold.new(name, folder=tmp_path)
    with pytest.raises(UsageError, match="cannot write .*No such file or directory"):
        scaffold.new("other", folder=tmp_path / "none")
