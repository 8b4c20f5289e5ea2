"""In a checkout `inference` and `ppl_models` are folders of their own: join them to `latentbits`.

Installed, they are `latentbits.inference` and `latentbits.models`. In a checkout the same files are
found by these names and by those of their folders, and a file is one module whichever is used. The
wheel does not hold this file.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDERS = {"latentbits.inference": "inference", "latentbits.models": "ppl_models"}


class _Alias(Loader):
    """A module under a second name."""

    def __init__(self, name: str):
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = alias(spec.name, self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put that of the second name there


class _Joined(MetaPathFinder):
    def __init__(self, root: Path):
        self.root = root

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        if fullname in FOLDERS:
            folder = self.root / FOLDERS[fullname]
            return spec_from_file_location(
                fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
        for name, folder_name in FOLDERS.items():
            head, _, rest = fullname.partition(".")
            if head == folder_name and rest != "__main__":
                return ModuleSpec(fullname, _Alias(f"{name}.{rest}" if rest else name))
        return None


def alias(second: str, name: str) -> ModuleType:
    """Let a module, and what it has imported of its own, be found by a second name.

    Its parts at once: to import `ppl_models.latent_trait` later would put that module where the
    package has the program of the same name.
    """
    module = importlib.import_module(name)
    for part in [x for x in sys.modules if x.startswith(f"{name}.")]:
        sys.modules.setdefault(second + part.removeprefix(name), sys.modules[part])
    return module


def join(root: Path) -> None:
    """Let the folders of the checkout at `root` be found by both names."""
    if not any(isinstance(finder, _Joined) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Joined(root))
