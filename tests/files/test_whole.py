"""Files that are there whole or not at all."""

import os
import stat

import pytest

from llama3jit.files.whole import write_whole


def test_a_file_takes_the_place_of_another(tmp_path):
    path = tmp_path / "a"
    write_whole(path, b"one")
    write_whole(path, iter([b"tw", b"", b"o"]))
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


def test_what_fails_leaves_what_was_there(tmp_path):
    def parts():
        yield b"half"
        raise OSError("no space left")

    (tmp_path / "a").write_bytes(b"whole")
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "a", parts())
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_private_files_are_for_their_owner(tmp_path):
    for private, mode in ((False, 0o644), (True, 0o600)):
        write_whole(tmp_path / "a", b"", private=private)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
