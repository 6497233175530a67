"""Word vectors: word2vec's and GloVe's text, with and without a header, and every broken file told by its line."""

import gzip

import pytest

from clearhead.errors import DataError
from clearhead.text.vectors import read_vectors, vector_size

LINES = ["cat 1 2.5 -3e-1", "dog 4 5 6", ". . 7 8 9", "cat 0 0 0"]


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("header", [(), ("4 3",)])
def test_words_are_found_with_and_without_a_header(tmp_path, header):
    path = write(tmp_path / "v.txt", *header, *LINES)
    found = read_vectors(path, ["cat", ". .", "fish"])
    assert (found.size, found.count) == (3, 4)
    assert found.vectors == {"cat": [1.0, 2.5, -0.3], ". .": [7.0, 8.0, 9.0]}
    assert vector_size(path) == 3


def test_a_packed_file_and_blanks_at_the_end_of_lines(tmp_path):
    path = tmp_path / "v.gz"
    path.write_bytes(gzip.compress(b"2 2\ncat 1 2 \ndog 3 4 \n"))
    assert read_vectors(str(path), ["dog"]).vectors == {"dog": [3.0, 4.0]}


BROKEN = [
    (["cat 1 2", "dog 3"], "v.txt:2: expected a word and 2 numbers; there are 2 parts in all"),
    (["cat 1 2", "dog 3 4 5"], "v.txt:2: expected a word and 2 numbers; there are more: 'dog 3 4 5'"),
    (["cat 1 x"], "v.txt:1: expected numbers after the word; came 'x'"),
    (["cat 1 nan"], "v.txt:1: expected numbers after the word; came 'nan'"),
    (["cat"], "v.txt:1: expected a word and its numbers; came 'cat'"),
    (["3 2", "cat 1 2"], "v.txt: its first line promises 3 vectors, and it has 1; is the file whole"),
    (["1 0", "cat"], "v.txt:1: the header says that vectors have 0 numbers"),
    (["0 4"], "v.txt: holds no vectors"),
    (["2 2", "cat 1 2", " 3 4"], "v.txt:3: expected a word and 2 numbers"),
]


@pytest.mark.parametrize(("lines", "said"), BROKEN)
def test_a_broken_file_is_told_by_its_line(tmp_path, lines, said):
    path = write(tmp_path / "v.txt", *lines)
    with pytest.raises(DataError, match=said):
        read_vectors(path, ["cat"])


def test_a_file_that_is_not_text_or_not_there(tmp_path):
    (tmp_path / "v.bin").write_bytes(b"cat 1 2\n\xff\xfe 1 2\n")
    with pytest.raises(DataError, match=r"v\.bin:2: .*UTF-8"):
        read_vectors(str(tmp_path / "v.bin"), ["cat"])
    with pytest.raises(DataError, match="there is no such file"):
        vector_size(str(tmp_path / "none.txt"))


@pytest.mark.parametrize("header", ["1 1000000000", f"{'9' * 5000} 3", f"3 {'9' * 5000}"])
def test_a_header_is_not_believed_before_a_vector_is_seen(tmp_path, header):
    path = write(tmp_path / "v.txt", header, "cat 1 2 3")
    if header == "1 1000000000":
        with pytest.raises(DataError, match="expected a word and 1000000000 numbers; there are 4 parts"):
            vector_size(path)
    with pytest.raises(DataError, match=r"v\.txt:\d: expected a word and"):
        read_vectors(path, ["cat"])
