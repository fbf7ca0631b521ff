"""A new recipe file, begun as a copy of a shipped one."""

from __future__ import annotations

import ast
import keyword
from pathlib import Path

from kmgpu import recipe_card
from kmgpu.errors import UsageError, nearest

KINDS = {  # of models, and the shipped recipe that shows each best
    "mlp": "digits_mlp",
    "cnn": "digits_cnn",
    "resnet": "cifar10_resnet",
    "vit": "vit_tiny",
    "transformer": "text_classifier",
    "bert": "bert_mlm",
    "gpt": "char_gpt",
    "lstm": "timeseries_lstm",
    "table": "tabular_embeddings",
    "vae": "vae",
}


def new(name: str, origin: str = "cnn", *, folder: str | Path = ".") -> tuple[Path, str]:
    """Write ``name``.py, a copy of the recipe for a kind of model, and return its path and the recipe's name.

    ``origin`` is one of ``KINDS``, or a shipped recipe. Raises UsageError; never overwrites a file.
    """
    stem = name.removesuffix(".py")
    if not stem.isidentifier() or keyword.iskeyword(stem):
        raise UsageError(f"a recipe cannot be called {name!r}; use letters, digits and underscores, as in my_recipe")
    known = [*KINDS, *(card.name for card in recipe_card.shipped())]
    if origin not in known:
        raise UsageError(f"--from is {origin!r}{nearest(origin, known)}; it is {', '.join(KINDS)}, or a shipped recipe")
    card = recipe_card.card(recipe_card.find_recipe(KINDS.get(origin, origin)))
    path = Path(folder) / f"{stem}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_copy(card, stem))
    except FileExistsError:
        raise UsageError(f"{path} exists; choose another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return path, card.name


def _copy(card: recipe_card.Card, stem: str) -> str:
    """Return the source of a recipe with a docstring that says what it was."""
    source = card.path.read_text(encoding="utf-8")
    docstring = ast.parse(source).body[0]
    rest = source.splitlines()[docstring.end_lineno :]
    title = stem.replace("_", " ").capitalize()
    head = [
        f'"""{title}: what it learns, in one line.',
        "",
        f"Begun as a copy of kmgpu's {card.name}: change the data, then the model. What `recipe` takes are the",
        "settings of `--set`; what it returns is trained on every backend and number of devices.",
        '"""',
    ]
    return "\n".join([*head, *rest]) + "\n"
