"""Packages of other programs, where they are needed."""

import pytest

from clearhead.errors import OptionError
from clearhead.interop.peers import import_peer, peer_version


def test_a_missing_package_is_named_with_the_way_to_install_it():
    with pytest.raises(OptionError, match=r"needs the package nowhere_at_all .*pip install 'ctranslate2>=\S+ 'gguf"):
        import_peer("nowhere_at_all.inside")


def test_a_package_is_told_with_its_version():
    assert peer_version("gguf").startswith("gguf 0.")
