"""A user's own files as data: folders of images, lines of text, tables."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kmgpu.data import files
from kmgpu.errors import MissingEnvironment, UsageError

pillow = pytest.importorskip("PIL.Image")


@pytest.fixture
def photos(tmp_path):
    """Three images in two classes, and a file that is none."""
    for name, colour in (("cat/2.png", 255), ("cat/1.png", 0), ("dog/old/3.jpg", 128)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(np.full((6, 4, 3), colour, np.uint8)).save(path)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_a_folder_of_images_is_rows_by_class_and_name(photos):
    rows = files.ImageFolder(photos, size=(8, 8))
    assert len(rows) == 3 and rows.class_names == ["cat", "dog"] and rows.labels.tolist() == [0, 0, 1]
    assert [path.name for path in rows.paths] == ["1.png", "2.png", "3.jpg"]


def test_an_image_is_read_by_keras_when_its_row_is(photos, monkeypatch):
    asked = {}

    def load_img(path, **options):
        asked.update(options, path=path)
        return pillow.open(path).resize((options["target_size"][1], options["target_size"][0]))

    utils = SimpleNamespace(load_img=load_img, img_to_array=lambda image, dtype: np.asarray(image, dtype))
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(utils=utils))
    image, label = files.ImageFolder(photos, size=(8, 5))[1]
    assert image.shape == (8, 5, 3) and image.dtype == np.float32 and image.max() == 1 and label == 0
    assert asked["color_mode"] == "rgb" and asked["keep_aspect_ratio"] is True


REFUSED = {
    "does not exist": lambda folder: folder / "none",
    "has no images in subfolders": lambda folder: folder / "cat",
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_folder_without_classes_is_refused(photos, message):
    with pytest.raises(UsageError, match=message):
        files.ImageFolder(REFUSED[message](photos), size=(8, 8))


def test_a_number_of_channels_that_no_image_has_is_refused(photos):
    with pytest.raises(UsageError, match="channels is 2; it is 1, 3 or 4"):
        files.ImageFolder(photos, size=(8, 8), channels=2)


def test_lines_of_a_text_or_of_a_folder_of_texts(tmp_path):
    (tmp_path / "b.txt").write_text("three\n\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("één\n  \ntwo", encoding="utf-8")
    assert files.text_lines(tmp_path / "a.txt") == ["één", "two"]
    assert files.text_lines(tmp_path) == ["één", "two", "three"]


def test_texts_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "latin.txt").write_bytes("één".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UsageError, match=r"latin.txt is not utf-8 .*; name its encoding"):
        files.text_lines(tmp_path / "latin.txt")
    with pytest.raises(UsageError, match="has no text"):
        files.text_lines(tmp_path / "empty.txt")
    with pytest.raises(UsageError, match="cannot read the text .*none.txt: No such file"):
        files.text_lines(tmp_path / "none.txt")


TABLE = "age,job,bought\n30,cook,1\n,pilot,0\n41.5,cook,1\n"


def test_a_table_is_columns_of_numbers_and_a_target(tmp_path):
    (tmp_path / "people.csv").write_text(TABLE)
    columns, y = files.table(tmp_path / "people.csv", target="bought", text=["job"])
    assert sorted(columns) == ["age", "job"] and y.tolist() == [1, 0, 1]
    assert columns["job"].tolist() == [0, 1, 0] and columns["job"].dtype == np.int32
    assert columns["age"].dtype == np.float32 and np.isnan(columns["age"][1])


REFUSED_TABLES = {
    "has no column 'bougt' \\(did you mean 'bought'\\?\\); it has age, job, bought": (TABLE, "bougt", ["job"]),
    "column 'job' is no column of numbers .*; add it to text=": (TABLE, "bought", []),
    "row 2 has 2 cells; the first line names 3 columns": ("a,b,c\n1,2\n", "a", []),
    "has no rows; its first line names the columns": ("a,b\n", "a", []),
}


@pytest.mark.parametrize("message", REFUSED_TABLES)
def test_a_table_that_is_none_is_refused(tmp_path, message):
    content, target, text = REFUSED_TABLES[message]
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UsageError, match=message):
        files.table(tmp_path / "t.csv", target=target, text=text)


def test_parquet_is_read_by_pandas(tmp_path, monkeypatch):
    frame = {"age": np.array([1.0, 2.0]), "bought": np.array([0, 1])}
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(read_parquet=lambda path: Frame(frame)))
    (tmp_path / "t.parquet").write_bytes(b"")
    read, y = files.table(tmp_path / "t.parquet", target="bought")
    assert read["age"].tolist() == [1, 2] and y.tolist() == [0, 1]


class Frame(dict):
    """What is used of a data frame."""

    @property
    def columns(self):
        return list(self)


def test_parquet_without_its_packages_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(MissingEnvironment, match="pip install pandas pyarrow"):
        files.table(tmp_path / "t.parquet", target="bought")
