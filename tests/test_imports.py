"""A framework that a recipe brings for its data, beside the one that trains, takes no device and brings no other."""

from __future__ import annotations

import subprocess
import sys

STAND_IN = """
try:
    import jaxlib
    brought = True
except ModuleNotFoundError:
    brought = False

class config:
    hidden = []

    @staticmethod
    def set_visible_devices(devices, kind):
        config.hidden.append((devices, kind))
"""
SCRIPT = """
import sys
from kmgpu.backends.common import imports

sys.meta_path.insert(0, imports.WithoutDevices({"tensorflow", "jax", "jaxlib"}))
import tensorflow
import tensorflow
print(tensorflow.config.hidden, tensorflow.brought, tensorflow.__file__)
"""


def test_tensorflow_sees_no_gpu_and_does_not_bring_jax(tmp_path):
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    script = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT}"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.stdout.split("\n")[0] == f"[([], 'GPU')] False {tmp_path}/tensorflow.py", answer.stderr
