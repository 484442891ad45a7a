"""`afterbay connector DIR`: what Python finds with DIR in PYTHONPATH."""

import os
import subprocess
import sys

FIND = """
from importlib.metadata import entry_points
for group in ("sglang.srt.plugins", "vllm.general_plugins"):
    for each in entry_points(group=group):
        print(each.name, each.load().__module__)
"""


def test_python_finds_each_connector_once_also_after_it_was_written_again(afterbay, tmp_path):
    for _ in range(2):
        assert subprocess.run([afterbay, "connector", tmp_path / "connector"]).returncode == 0
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "connector")}
    done = subprocess.run([sys.executable, "-c", FIND], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["afterbay afterbay_sglang", "afterbay afterbay_vllm"], done.stderr


def test_a_directory_that_cannot_be_made_is_an_error_with_its_name(afterbay, tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run([afterbay, "connector", tmp_path / "file/connector"], capture_output=True, text=True)
    assert done.returncode == 1 and f"{tmp_path}/file" in done.stderr
