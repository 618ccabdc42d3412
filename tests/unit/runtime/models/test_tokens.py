"""Windows of token files, the same in every process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeloom.ir import InputError
from tests.support.inside import Tokens

NOWHERE = Path("tokenizer.json")


def tokens(data: Path | None, vocabulary: int = 300, tokenizer: Path = NOWHERE) -> Tokens:
    return Tokens(None if data is None else str(data), vocabulary, 0, tokenizer)


def test_random_tokens_depend_on_step_and_seed() -> None:
    one, same, other = (tokens(None).windows(step, 2, 5) for step in (0, 0, 1))
    assert one.equal(same)
    assert not one.equal(other)
    assert 0 <= one.min() <= one.max() < 300
    assert not Tokens(None, 300, 1, NOWHERE).windows(0, 2, 5).equal(one)


@pytest.mark.parametrize(
    ("name", "dtype", "vocabulary"),
    [("a.npy", np.int64, 300), ("a.bin", np.uint16, 300), ("a.bin", np.uint32, 70000)],
)
def test_files_of_ids_are_mapped(name: str, dtype: type, vocabulary: int, tmp_path: Path) -> None:
    path, ids = tmp_path / name, np.arange(250, dtype=dtype)
    if name.endswith("npy"):
        np.save(path, ids.reshape(5, 50))
    else:
        ids.tofile(path)
    source = tokens(path, vocabulary)
    found = source.windows(0, 4, 9)
    assert (found[:, 1:] - found[:, :-1] == 1).all()


def test_text_is_bytes_or_by_the_models_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two one two")
    assert bytes(tokens(path).windows(0, 1, 15)[0].tolist()) == b"one two one two"
    library = pytest.importorskip("tokenizers")
    model = library.models.WordLevel({"one": 1, "two": 2}, unk_token="one")
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = tokens(path, 3, tmp_path / "tokenizer.json").windows(0, 1, 4)
    assert found.tolist() == [[1, 2, 1, 2]]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abcd")
    with pytest.raises(InputError, match=r"a.txt: expected 5 tokens \(seq\) or more, got 4$"):
        tokens(path).windows(0, 1, 5)
    with pytest.raises(InputError, match=r"expected tokens from 0 to 49, .*vocabulary, got 97$"):
        tokens(path, 50).windows(0, 1, 4)
    np.save(tmp_path / "a.npy", np.zeros(9))
    with pytest.raises(InputError, match=r"a\.npy: expected whole numbers, got float64$"):
        tokens(tmp_path / "a.npy").windows(0, 1, 4)
    (tmp_path / "b.npy").write_text("x")
    with pytest.raises(InputError, match=r"b\.npy: expected a file of tokens: "):
        tokens(tmp_path / "b.npy").windows(0, 1, 4)
