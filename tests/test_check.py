"""What `kmgpu check` says of a recipe, from what its cells have found."""

from kmgpu.report.check import Cell, CheckResult, lines

FOUND = {
    "framework": "torch 2.13", "parameters": 1_000, "trained_parameters": 900, "layers": 7, "batch_size": 64,
    "per_device_batch": [64], "rows": 1437, "operations": 128_000_000, "losses": [2.5, 2.25], "seconds": [3.0, 0.01],
    "peak_bytes": 1, "notes": [],
    "bytes": {"weights": 2**20, "gradients": 2**20, "optimizer": 2**21, "outputs": 2**22, "batch": 2**22},
    "layer_notes": [
        {"kind": "BatchNormalization", "count": 3, "note": "is over the global batch"},
        {"kind": "ReLU", "count": 2, "note": "has a kink"},
        {"kind": "MaxPooling2D", "count": 1, "note": "has a kink"},
    ],
}  # fmt: skip


def result(*cells):
    return CheckResult("mine", {"size": "tiny"}, "cpu", list(cells))


def said(*cells, width=80):
    found = lines(result(*cells), width)
    assert all(len(line) <= width for line in found), found
    return "\n".join(found)


def test_the_model_its_operations_and_its_memory_are_said():
    text = " ".join(said(Cell("torch", 1, FOUND, None), Cell("torch", 2, FOUND, None)).split())
    assert text.startswith("mine with size=tiny: 7 layers, 1,000 parameters (900 trained).")
    assert "128 MFLOP a step of 64 rows, 2 MFLOP a row" in text
    assert "at least: 12.0 on one device and 8.0 on each of 2" in text, "outputs and batch are shared, weights are not"
    assert "BatchNormalization x3: is over the global batch." in text
    assert "ReLU x2, MaxPooling2D x1: has a kink." in text, "one sentence for all that it is true of"
    assert "2.5, 2.25" in text and "3.0, then 0.010" in text


def test_operations_are_those_of_the_whole_batch_on_one_device():
    half = {**FOUND, "operations": 64_000_000}
    assert result(Cell("torch", 2, half, None), Cell("torch", 1, FOUND, None)).operations == 128_000_000
    uncounted = {**FOUND, "operations": None}
    assert "not counted: torch counts them" in said(Cell("jax", 1, uncounted, None))


def test_a_backend_on_which_it_does_not_run_is_named_with_the_reason():
    failed = Cell("jax", 2, None, "TextVectorization works on TensorFlow alone\nand more")
    text = said(Cell("torch", 1, FOUND, None), failed)
    assert "failed: TextVectorization works on TensorFlow alone" in text and "and more" not in text
    assert not result(failed).ok and result(Cell("torch", 1, FOUND, None)).ok
    assert said(failed).startswith("mine with size=tiny\n")


def test_a_model_without_anything_special_says_so():
    assert "No layer of it differs" in said(Cell("torch", 1, {**FOUND, "layer_notes": []}, None), width=120)
