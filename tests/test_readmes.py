"""The README in Korean says what the English one says: its commands, headings and pages are the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, KOREAN = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ko.md"))
COMMAND = re.compile(r"^(kmgpu|make|source|pip|python) ", re.MULTILINE)


def blocks(text):
    """Code that a reader types; not what is printed."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for language, code in found if language == "python" or COMMAND.search(code)]


def outside_blocks(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_both_have_the_same_code_to_type_in_the_same_order():
    assert blocks(ENGLISH) == blocks(KOREAN)
    assert len(blocks(ENGLISH)) >= 4


def test_both_have_the_same_sections():
    english, korean = (re.findall(r"^(#+) ", outside_blocks(text), re.MULTILINE) for text in (ENGLISH, KOREAN))
    assert english == korean


def test_commands_within_sentences_are_in_both():
    def commands(text):
        found = re.findall(r"`((?:kmgpu|make)[ .(][^`]*)`", outside_blocks(text))
        return {" ".join(code.split()) for code in found}

    assert commands(ENGLISH) == commands(KOREAN)


def test_the_korean_one_points_to_pages_of_the_english_one():
    def pages(text):
        found = {page.partition("#")[0] for page in re.findall(r"\]\(([^)]+)\)", text)}
        return found - {"README.md", "README.ko.md"}

    assert pages(KOREAN) <= pages(ENGLISH) and len(pages(KOREAN)) > 10


@pytest.mark.parametrize("text", (ENGLISH, KOREAN), ids=("English", "Korean"))
def test_pages_exist(text):
    for page in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert page.startswith("http") or (ROOT / page).exists(), page
