"""Recipes are found, described and configured from their source text alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kmgpu.errors import UsageError
from kmgpu.recipe_card import Card, card, checked_settings, find_recipe, parse_settings, recipe_directory, shipped

CARD = Card(
    "digits_cnn",
    "",
    {"batch_size": 64, "learning_rate": 1e-3, "augment": False, "activation": "relu", "units": (32, 64), "clip": None},
    Path("/digits_cnn.py"),
    "",
)


def write(path, text):
    path.write_text(text)
    return path


def test_a_card_tells_name_summary_and_settings(tmp_path):
    path = write(
        tmp_path / "mine.py",
        '"""One line.\n\nMore."""\nimport nonexistent\n\n'
        "def recipe(first=-1, *, rate=1e-3, sizes=(1, [2]), clip=None):\n    1/0\n",
    )
    read = card(path)
    assert (read.name, read.summary, read.path, read.doc) == ("mine", "One line.", path, "One line.\n\nMore.")
    assert read.settings == {"first": -1, "rate": 1e-3, "sizes": (1, [2]), "clip": None}


def test_without_a_docstring_of_the_file_that_of_the_function_is_taken(tmp_path):
    assert card(write(tmp_path / "a.py", "def recipe():\n    '''Of the function.'''")).summary == "Of the function."
    assert card(write(tmp_path / "b.py", "def recipe(): pass")).summary == ""


def test_the_last_definition_holds(tmp_path):
    assert card(write(tmp_path / "a.py", "def recipe(a=1): pass\ndef recipe(b=2): pass")).settings == {"b": 2}


def test_the_choices_of_a_setting_are_read_from_its_annotation_and_kept_to(tmp_path):
    text = "def recipe(*, size: Literal['tiny', 'full'] = 'tiny', deep: typing.Literal[1, 2] = 1, rate: float = 0.1): 1"
    read = card(write(tmp_path / "sized.py", text))
    assert read.choices == {"size": ("tiny", "full"), "deep": (1, 2)}
    assert parse_settings(read, ["size=full", "deep=2"]) == {"size": "full", "deep": 2}
    with pytest.raises(UsageError, match=r"size is 'ful' \(did you mean 'full'\?\); it is one of 'tiny', 'full'"):
        parse_settings(read, ["size=ful"])
    with pytest.raises(UsageError, match="sized: deep is 3; it is one of 1, 2"):
        checked_settings(read, {"deep": 3})


REFUSED = {
    "no function": ("x = 1", "has no function `recipe`"),
    "syntax": ("x = 1\ndef recipe(:\n    pass", "is not valid Python in line 2: invalid syntax"),
    "null bytes": ("x = 1\0", "is not valid Python"),
    "no default": ("\ndef recipe(a, b=1): pass", "line 2: recipe() has no default for 'a'"),
    "no keyword default": ("def recipe(*, a=1, b): pass", "has no default for 'b'"),
    "a name": ("RATE = 1\ndef recipe(rate=RATE): pass", "has the default RATE for 'rate'; it must be a literal"),
    "a call": ("def recipe(rate=float('nan')): pass", "has the default float('nan') for 'rate'"),
    "star": ("def recipe(*args): pass", "takes *args; name each setting"),
    "double star": ("def recipe(**settings): pass", "takes **settings; name each setting"),
    "position only": ("def recipe(a=1, /): pass", "takes 'a' by position only"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_recipe_is_refused(case, tmp_path):
    text, words = REFUSED[case]
    with pytest.raises(UsageError) as refusal:
        card(write(tmp_path / "mine.py", text))
    assert words in str(refusal.value) and str(tmp_path / "mine.py") in str(refusal.value)


def test_a_file_that_is_not_python_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"notes.txt is not a Python file; a recipe is a \.py file"):
        card(write(tmp_path / "notes.txt", "def recipe(): pass"))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UsageError, match="cannot read the recipe"):
        card(tmp_path / "folder.py")


def test_shipped_recipes_have_a_summary_and_the_common_settings():
    cards = shipped()
    names = [one.name for one in cards]
    assert len(names) >= 12 and names == sorted(names) and {"digits_cnn", "bert_mlm", "resnet50"} <= set(names)
    for one in cards:
        assert one.summary.endswith(".")
        assert {"batch_size", "epochs", "learning_rate"} <= one.settings.keys()


def test_cards_are_read_without_keras_or_numpy():
    code = (
        "import sys; from kmgpu.recipe_card import shipped; shipped(); "
        "print([name for name in ('keras', 'numpy', 'sklearn') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


def test_a_recipe_is_found_by_name_or_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.py", "")
    write(tmp_path / "digits_cnn", "a file that happens to be called so")
    assert find_recipe("digits_cnn") == recipe_directory() / "digits_cnn.py"
    assert find_recipe("mine.py") == find_recipe("./mine.py") == tmp_path / "mine.py"


@pytest.mark.parametrize(
    "name, words",
    [
        ("digits_cn", "no recipe 'digits_cn' (did you mean 'digits_cnn'?); there are bert_mlm, char_gpt"),
        ("zzz", "no recipe 'zzz'; there are bert_mlm"),
        ("digits_cnn.py", "digits_cnn.py does not exist (did you mean 'digits_cnn'?)"),
        ("folder/mine.py", "folder/mine.py does not exist; there are"),
        ("./", "./ is a directory, and a recipe is a .py file"),
    ],
)
def test_an_unknown_recipe_is_refused_with_the_nearest(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refusal:
        find_recipe(name)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "text, value",
    [
        ("batch_size=32", 32),
        ("learning_rate=1", 1.0),
        ("learning_rate = 1e-4", 1e-4),
        ("learning_rate=-inf", float("-inf")),
        ("augment=true", True),
        ("augment=False", False),
        ("activation=gelu", "gelu"),
        ("activation='gelu'", "gelu"),
        ("activation=3", "3"),
        ("activation=a=b", "a=b"),
        ("activation=", ""),
        ("units=[8, 8]", (8, 8)),
        ("units=8,8", (8, 8)),
        ("clip=0.5", 0.5),
        ("clip=norm", "norm"),
        ("clip=none", None),
    ],
)
def test_settings_take_the_type_of_their_default(text, value):
    (parsed,) = parse_settings(CARD, [text]).values()
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    "text, words",
    [
        ("batch_size=0.5", "digits_cnn: batch_size is '0.5'; it must be a whole number, as its default 64"),
        ("batch_size=true", "it must be a whole number"),
        ("batch_size=many", "it must be a whole number"),
        ("learning_rate=fast", "digits_cnn: learning_rate is 'fast'; it must be a number, as its default 0.001"),
        ("learning_rate=True", "it must be a number"),
        ("augment=1", "it must be true or false"),
        ("units=8", "it must be a tuple"),
        ("batch_size", "--set 'batch_size' is not of the form key=value; it has batch_size,"),
        ("=3", "is not of the form key=value"),
    ],
)
def test_a_setting_of_another_type_is_refused_in_one_sentence(text, words):
    with pytest.raises(UsageError) as refusal:
        parse_settings(CARD, [text])
    assert words in str(refusal.value)


def test_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as refusal:
        parse_settings(card(find_recipe("digits_cnn")), ["epoch=3"])
    assert str(refusal.value) == (
        "digits_cnn has no setting 'epoch' (did you mean 'epochs'?); it has batch_size, epochs, learning_rate"
    )


def test_a_recipe_without_settings_says_so():
    with pytest.raises(UsageError, match="plain has no setting 'a'; plain has no settings"):
        parse_settings(Card("plain", "", {}, Path("/plain.py"), ""), ["a=1"])


def test_settings_from_python_are_of_the_types_of_their_defaults():
    given = {"learning_rate": 1, "batch_size": np.int64(8), "augment": True, "units": [8], "clip": {"a": 1}}
    assert checked_settings(CARD, given) == {**given, "learning_rate": 1.0, "units": (8,)}
    assert type(checked_settings(CARD, given)["batch_size"]) is int


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learning_rate": "0.1"}, "digits_cnn: learning_rate is '0.1'; it must be a number, as its default 0.001"),
        ({"batch_size": 8.0}, "batch_size is 8.0; it must be a whole number"),
        ({"batch_size": True}, "batch_size is True; it must be a whole number"),
        ({"augment": 1}, "augment is 1; it must be true or false"),
        ({"clip": object()}, "digits_cnn: clip is a object; it must be something that JSON can hold"),
        ({"units": np.ones(3)}, "units is a ndarray; it must be something that JSON can hold"),
        ({"batchsize": 1}, "has no setting 'batchsize' (did you mean 'batch_size'?)"),
        (["epochs"], "settings is ['epochs']; it is a dict such as {'learning_rate': 0.1}"),
    ],
)
def test_a_setting_of_another_type_from_python_is_refused_in_one_sentence(given, words):
    with pytest.raises(UsageError) as refusal:
        checked_settings(CARD, given)
    assert words in str(refusal.value)


def test_a_directory_is_no_recipe_and_what_is_in_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="mine is a directory, and a recipe is a .py file; in it there is no .py file"):
        find_recipe("mine")
    write(tmp_path / "mine" / "a.py", "")
    with pytest.raises(UsageError, match="in it there is mine/a.py"):
        find_recipe("mine/")
