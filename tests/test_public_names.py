"""`import motet` is quick, and its public names arrive when they are used."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import motet
import motet.core.errors
import motet.errors


def test_importing_motet_imports_nothing_heavy() -> None:
    code = (
        "import sys, motet, motet.errors\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'transformers', 'tokenizers'} & set(sys.modules)\n"
        "inner = [name for name in sys.modules if name.startswith('motet.') and name != 'motet.errors']\n"
        "print(sorted(heavy), inner)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


@pytest.mark.parametrize("name", [name for name in motet.__all__ if name != "__version__"])
def test_every_public_name_is_the_object_of_its_home(name: str) -> None:
    value = getattr(motet, name)
    assert value.__name__ == name
    assert value.__module__ == motet._HOMES[name]


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        motet.Nothing  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        motet.errors.Nothing  # noqa: B018


def test_listed_names_are_all_there_is() -> None:
    assert set(motet._HOMES) | {"__version__"} == set(motet.__all__)
    assert set(motet.__all__) <= set(dir(motet))


def test_errors_are_those_of_core() -> None:
    public = {
        name
        for name, value in vars(motet.core.errors).items()
        if isinstance(value, type) and issubclass(value, motet.core.errors.MotetError)
    }
    assert set(motet.errors.__all__) == public
    assert all(getattr(motet.errors, name) is getattr(motet.core.errors, name) for name in public)


def test_the_version_is_the_installed_one() -> None:
    assert motet.__version__ == version("motet")


def test_errors_need_no_import_of_their_own() -> None:
    code = "import motet\nprint(motet.errors.LoadError.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "LoadError"
