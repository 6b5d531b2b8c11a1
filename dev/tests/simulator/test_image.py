"""The simulator's image has the simulator's folder alone."""

import re
import shutil
import sys
from pathlib import Path

from tests.deploy.commands import ROOT, run

IMPORT_ALL = """
import importlib, pkgutil, surelane_dev
names = [found.name for found in pkgutil.walk_packages(surelane_dev.__path__, "surelane_dev.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(surelane_dev.__file__, len(names))
"""


def test_the_simulator_imports_nothing_that_its_image_lacks(tmp_path: Path) -> None:
    copy = re.compile(r"^COPY (dev/src/surelane_dev\S*) (surelane_dev\S*)$", re.MULTILINE)
    copied = copy.findall((ROOT / "dev/Dockerfile").read_text())
    for source, target in copied:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / target)
        else:
            (tmp_path / target).mkdir(exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / target)
    assert len(copied) == 2
    own = {"PYTHONPATH": str(tmp_path)}
    done = run(sys.executable, "-c", IMPORT_ALL, where=tmp_path, env=own, within=300)
    file, count = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert int(count) > 20
