"""Recipe cards: what a recipe file says of itself, read from its source text without importing it."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kmgpu import records
from kmgpu.errors import UsageError, nearest


@dataclass(frozen=True)
class Card:
    """Name, summary and settings of one recipe."""

    name: str  # of the file, without .py
    summary: str  # first line of the docstring
    settings: dict[str, Any]  # keyword arguments of the function `recipe`, with their defaults
    path: Path  # absolute
    doc: str  # the whole docstring
    choices: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of settings annotated as Literal["a", "b"]


def find_recipe(recipe: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a shipped recipe by name, or of a user's file by path. Raises UsageError."""
    if not isinstance(recipe, (str, os.PathLike)):
        raise UsageError(f"recipe is {recipe!r}; it is a name such as 'digits_cnn' or the path of a .py file")
    name_or_path = os.fspath(recipe)
    path = Path(name_or_path).expanduser()
    files = {path.stem: path for path in _shipped_files()}
    is_path = "/" in name_or_path or path.suffix == ".py"
    if is_path and path.is_file():
        return path.absolute()
    if not is_path and name_or_path in files:
        return files[name_or_path]
    if path.is_dir():
        inside = ", ".join(sorted(str(path / file.name) for file in path.glob("*.py"))) or "no .py file"
        raise UsageError(f"{name_or_path} is a directory, and a recipe is a .py file; in it there is {inside}")
    known = f"{nearest(path.stem, list(files))}; there are {', '.join(files)}, or give the path of a .py file"
    if is_path:
        raise UsageError(f"{name_or_path} does not exist{known}")
    raise UsageError(f"no recipe {name_or_path!r}{known}")


def shipped() -> list[Card]:
    """Return the cards of the recipes that come with kmgpu, by name."""
    return [card(path) for path in _shipped_files()]


def recipe_directory() -> Path:
    """Return the directory of the shipped recipes: in the installed package, or at the top of a source checkout."""
    package = Path(__file__).absolute().parent
    installed = package / "recipes"  # pyproject.toml puts them there in a wheel
    return installed if installed.is_dir() else package.parent / "recipes"


def card(path: str | Path) -> Card:
    """Return the card of a recipe file. Raises UsageError for a file that is no recipe."""
    path = Path(path).absolute()
    module = _parse(path)
    # As when the file runs, the last definition of a name holds.
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "recipe"]
    if not functions:
        raise UsageError(f"{path} has no function `recipe`; a recipe file defines recipe(*, name=default, ...)")
    doc = ast.get_docstring(module) or ast.get_docstring(functions[-1]) or ""
    settings = _settings(functions[-1], path)
    return Card(path.stem, doc.partition("\n")[0], settings, path, doc, _choices(functions[-1]))


def parse_settings(card: Card, texts: list[str]) -> dict[str, Any]:
    """Return settings from texts like ``learning_rate=0.1``, each of the type of its default. Raises UsageError."""
    settings = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise UsageError(f"--set {text!r} is not of the form key=value; {_has(card)}")
        if key not in card.settings:
            raise _unknown(card, key)
        settings[key] = _chosen(card, key, _typed(f"{card.name}: {key}", value, card.settings[key]))
    return settings


def checked_settings(card: Card, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings given as values, each of the type of its default, as JSON has it. Raises UsageError."""
    if not isinstance(settings, Mapping):
        raise UsageError(f"settings is {settings!r}; it is a dict such as {{'learning_rate': 0.1}}")
    return {name: _as_default(card, name, value) for name, value in settings.items()}


def _as_default(card: Card, name: str, value: Any) -> Any:
    if name not in card.settings:
        raise _unknown(card, name)
    default = card.settings[name]
    plain = value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value
    if isinstance(default, float) and type(plain) is int:
        plain = float(plain)
    elif isinstance(default, (list, tuple)) and isinstance(plain, (list, tuple)):
        plain = type(default)(plain)
    try:
        records.dumps(plain)
    except (TypeError, ValueError):
        raise UsageError(
            f"{card.name}: {name} is a {type(value).__name__}; it must be something that JSON can hold"
        ) from None
    if default is not None and type(plain) is not type(default):
        raise _not_as_default(f"{card.name}: {name}", value, default)
    return _chosen(card, name, plain)


def _chosen(card: Card, name: str, value: Any) -> Any:
    """Return the value of a setting if it is one of its choices. Raises UsageError."""
    known = card.choices.get(name)
    if known and value not in known:
        close = nearest(value, [str(choice) for choice in known])
        raise UsageError(f"{card.name}: {name} is {value!r}{close}; it is one of {', '.join(map(repr, known))}")
    return value


def _shipped_files() -> list[Path]:
    return sorted(path for path in recipe_directory().glob("*.py") if not path.name.startswith("_"))


def _unknown(card: Card, name: Any) -> UsageError:
    return UsageError(f"{card.name} has no setting {name!r}{nearest(name, list(card.settings))}; {_has(card)}")


def _has(card: Card) -> str:
    return f"it has {', '.join(card.settings)}" if card.settings else f"{card.name} has no settings"


def _parse(path: Path) -> ast.Module:
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file; a recipe is a .py file with a function `recipe`")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come when the file runs
            return ast.parse(path.read_bytes(), str(path))  # bytes, so that Python finds the encoding
    except OSError as error:
        raise UsageError(f"cannot read the recipe {path}: {error.strerror}") from error
    except SyntaxError as error:
        line = f" in line {error.lineno}" if error.lineno else ""
        raise UsageError(f"{path} is not valid Python{line}: {error.msg}") from error
    except ValueError as error:  # null bytes, before Python 3.12
        raise UsageError(f"{path} is not valid Python: {error}") from error


def _settings(function: ast.FunctionDef, path: Path) -> dict[str, Any]:
    """Return the keyword arguments of a function with their defaults, in order."""
    arguments = function.args
    where = f"{path}, line {function.lineno}: recipe()"
    for star, argument in (("*", arguments.vararg), ("**", arguments.kwarg)):
        if argument:
            raise UsageError(f"{where} takes {star}{argument.arg}; name each setting, with a default")
    if arguments.posonlyargs:
        raise UsageError(f"{where} takes {arguments.posonlyargs[0].arg!r} by position only; settings go by name")
    missing = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    settings = {}
    for argument, default in zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True):
        if default is None:
            raise UsageError(f"{where} has no default for {argument.arg!r}; each setting needs one")
        try:
            settings[argument.arg] = ast.literal_eval(default)
        except (ValueError, TypeError):
            raise UsageError(
                f"{where} has the default {ast.unparse(default)} for {argument.arg!r}; it must be a literal, such as "
                "a number, a string or None, so that it can be read without running the file"
            ) from None
    return settings


def _choices(function: ast.FunctionDef) -> dict[str, tuple[Any, ...]]:
    """Return the values that settings annotated as Literal[...] may have."""
    choices = {}
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        match argument.annotation:
            case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal"), slice=inside):
                values = inside.elts if isinstance(inside, ast.Tuple) else [inside]
                choices[argument.arg] = tuple(ast.literal_eval(value) for value in values)
    return choices


def _typed(name: str, text: str, default: Any) -> Any:
    """Return the value that a text means, of the type of ``default``; of any type where the default is None."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = {"true": True, "false": False, "none": None}.get(text.lower(), text)
    if default is None:
        return value
    if isinstance(default, str):
        return value if isinstance(value, str) else text  # `name=3` means the word "3"
    if isinstance(default, float):
        if type(value) in (int, float) or text.lower().lstrip("+-") in ("inf", "infinity", "nan"):
            return float(value)
    elif isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        return type(default)(value)
    elif type(value) is type(default):
        return value
    raise _not_as_default(name, text, default)


def _not_as_default(name: str, value: Any, default: Any) -> UsageError:
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    expected = words.get(type(default), f"a {type(default).__name__}")
    return UsageError(f"{name} is {value!r}; it must be {expected}, as its default {default!r}")
