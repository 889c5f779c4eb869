"""The reader on sound files: against the gguf package, and against what was written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from gguf_samples import METADATA, tensors
from gguf_writer import array, header_bytes, key_value, write_gguf

from llama3jit.errors import InvalidArgumentError
from llama3jit.files.catalogue import DEFAULT_MODEL
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import default_store

LLAMA3_VOCAB = Path(__file__).parents[3] / "shared/data/ggml-vocab-llama-bpe.gguf"


def test_values_are_what_was_written(tmp_path: Path) -> None:
    with open_gguf(write_gguf(tmp_path / "m.gguf", METADATA)) as file:
        found = file.metadata
        assert list(found) == list(METADATA)
        assert len(found) == len(METADATA)
        for key, value in METADATA.items():
            assert key in found
            if key == "arr.nested":
                assert [item.tolist() for item in found[key]] == value
            elif key.startswith("arr.") and not isinstance(found[key], list):
                np.testing.assert_array_equal(found[key], value)
            elif key == "a.nan":
                assert found[key] != found[key]
            else:
                assert found[key] == value
        assert type(found["a.bool"]) is bool
        assert (found["arr.int"].dtype, found["arr.f8"].dtype) == (np.int32, np.float64)
        assert found["arr.int"].flags.writeable
        assert found.array_info("arr.text") == ("str", 5)
        assert found.array_info("arr.nested") == ("array", 2)
        assert found.array_info("a.text") is None
        assert found.type_name("a.i2") == "int16"
        assert "none" not in found
        assert found.get("none", 3) == 3


@pytest.mark.parametrize("key", ["arr.text", "arr.plain", "arr.empty"])
def test_string_spans_point_at_the_bytes(tmp_path: Path, key: str) -> None:
    with open_gguf(write_gguf(tmp_path / "m.gguf", METADATA)) as file:
        offsets, lengths = file.metadata.string_spans(key)
        raw = file.mapping
        spans = zip(offsets, lengths, strict=True)
        assert [raw[o : o + n].tobytes().decode() for o, n in spans] == METADATA[key]
        with pytest.raises(InvalidArgumentError, match=r"'a\.text' is not an array of strings"):
            file.metadata.string_spans("a.text")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 32, 256, 4096])
def test_tensors_are_what_was_written(tmp_path: Path, version: int, alignment: int) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", METADATA, tensors(), alignment=alignment, version=version
    )
    with open_gguf(path) as file:
        assert (file.version, file.alignment, file.paths) == (version, alignment, [path])
        assert list(file.tensors) == list(tensors())
        for name, expected in tensors().items():
            info, data = file.tensors[name], file.data(name)
            assert (info.shape, info.nbytes) == (expected.shape[::-1], expected.nbytes)
            assert info.offset % alignment == 0
            assert data.tobytes() == expected.tobytes()
            assert (data.dtype, data.ndim, data.flags.writeable) == (np.uint8, 1, False)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "BF16", "MXFP4"])
def test_blocks_agree_with_the_gguf_package(tmp_path: Path, name: str) -> None:
    gguf = pytest.importorskip("gguf")
    values = np.random.default_rng(2).standard_normal((6, 96), np.float32)
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, {"w": (values, name)})
    expected = gguf.GGUFReader(path).tensors[0]
    with open_gguf(path) as file:
        info = file.tensors["w"]
        assert info.type_name == expected.tensor_type.name == name
        assert (info.nbytes, info.offset) == (expected.n_bytes, expected.data_offset)
        assert file.data("w").tobytes() == expected.data.tobytes()


def test_a_file_of_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b", "ß"])
    writer.add_token_scores([0.5, 1.0, -1.0])
    writer.add_custom_alignment(64)
    for name, value in tensors().items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.metadata["llama.block_count"] == 2
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ß"]
        assert file.metadata["tokenizer.ggml.scores"].tolist() == [0.5, 1.0, -1.0]
        assert file.alignment == 64
        for name, value in tensors().items():
            assert file.data(name).tobytes() == value.tobytes()


def same_as_the_gguf_package(path: Path) -> None:
    expected = pytest.importorskip("gguf").GGUFReader(path)
    with open_gguf(path) as file:
        fields = {k: v for k, v in expected.fields.items() if not k.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for key, field in fields.items():
            value = file.metadata[key]
            assert (value if isinstance(value, str | list) else np.asarray(value).tolist()) == (
                field.contents()
            )
        assert list(file.tensors) == [tensor.name for tensor in expected.tensors]
        for tensor, info in zip(expected.tensors, file.tensors.values(), strict=True):
            assert info.type_name == tensor.tensor_type.name
            assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
            assert info.shape == tuple(tensor.shape)
            assert np.array_equal(file.data(info.name), tensor.data.reshape(-1).view(np.uint8))


def test_the_default_model_is_read_as_by_the_gguf_package() -> None:
    model = default_store().find(DEFAULT_MODEL)
    if model is None:
        pytest.skip(f"{DEFAULT_MODEL} is not pulled")
    same_as_the_gguf_package(Path(model.file))


@pytest.mark.slow
@pytest.mark.skipif(not LLAMA3_VOCAB.exists(), reason="shared/data is not beside the checkout")
def test_the_llama_3_vocabulary_is_read_as_by_the_gguf_package() -> None:
    same_as_the_gguf_package(LLAMA3_VOCAB)


@pytest.mark.skipif(not LLAMA3_VOCAB.exists(), reason="shared/data is not beside the checkout")
def test_the_llama_3_vocabulary_parses_in_a_moment() -> None:
    from time import perf_counter

    seconds = []
    for _ in range(3):
        start = perf_counter()
        with open_gguf(LLAMA3_VOCAB) as file:
            tokens, merges = (file.metadata[f"tokenizer.ggml.{k}"] for k in ("tokens", "merges"))
        seconds.append(perf_counter() - start)
    assert min(seconds) < 0.4
    assert (len(tokens), len(merges)) == (128256, 280147)
    assert (tokens[0], tokens[128000], merges[0]) == ("!", "<|begin_of_text|>", "Ġ Ġ")
    assert all(len(merge.split(" ")) == 2 for merge in merges)


@pytest.mark.skipif(not LLAMA3_VOCAB.exists(), reason="shared/data is not beside the checkout")
def test_the_two_ways_to_decode_strings_agree() -> None:
    with open_gguf(LLAMA3_VOCAB) as file:
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
            offsets, lengths = file.metadata.string_spans(key)
            raw = file.mapping.tobytes()
            spans = zip(offsets.tolist(), lengths.tolist(), strict=True)
            assert file.metadata[key] == [raw[o : o + n].decode() for o, n in spans]


def test_strings_that_are_not_utf_8_load(tmp_path: Path) -> None:
    pieces = [b"ok", b"\xff\xfe", b"\xe2\x98", b"", b"\xed\xa0\x80"]
    items = [len(piece).to_bytes(8, "little") + piece for piece in pieces]
    path = tmp_path / "m.gguf"
    for extra in ([], [b"\x01" + bytes(7) + b"\0"]):  # the fast way, and that of strings with NUL
        keys = [key_value("text", b"a\xffb"), key_value("tokens", array(8, items + extra))]
        path.write_bytes(header_bytes(keys))
        with open_gguf(path) as file:
            assert file.metadata["text"] == "a\ufffdb"
            expected = [piece.decode("utf-8", "replace") for piece in pieces]
            assert file.metadata["tokens"][:5] == expected
            offsets, lengths = file.metadata.string_spans("tokens")
            assert file.mapping[offsets[1] : offsets[1] + lengths[1]].tobytes() == pieces[1]


def test_an_unlisted_type_can_be_looked_at(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "future"},
        {"new": (b"x" * 32, 4242, (2, 100)), "old": np.ones(3, np.float32)},
    )
    with open_gguf(path) as file:
        info = file.tensors["new"]
        assert (info.format, info.ggml_type, info.type_name) == (None, 4242, "type 4242")
        assert (info.shape, info.nbytes) == ((100, 2), 32)
        assert file.data("new").tobytes() == b"x" * 32


def test_release_keeps_the_bytes(tmp_path: Path) -> None:
    big = np.arange(1 << 18, dtype=np.float32)
    path = write_gguf(
        tmp_path / "m.gguf", {}, {"a": np.ones(5, np.float32), "b": big, "c": np.ones(5, np.int8)}
    )
    with open_gguf(path) as file:
        view = file.data("b")
        assert view.tobytes() == big.tobytes()
        for name in file.tensors:
            file.release(name)
        assert view.tobytes() == big.tobytes()
        assert file.data("c").tobytes() == b"\1" * 5


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_release_gives_memory_back(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": np.ones(1 << 22, np.float32)})
    page = os.sysconf("SC_PAGE_SIZE")

    def mapped_mib() -> float:
        return int(Path("/proc/self/statm").read_text().split()[2]) * page / (1 << 20)

    with open_gguf(path) as file:
        before = mapped_mib()
        assert file.data("w").sum() > 0
        touched = mapped_mib()
        file.release("w")
        assert touched - before > 12
        assert mapped_mib() - before < 4


def test_close(tmp_path: Path) -> None:
    file = open_gguf(write_gguf(tmp_path / "m.gguf", METADATA, tensors()))
    view = file.data("token_embd.weight")
    file.close()
    file.close()
    assert view.tobytes() == tensors()["token_embd.weight"].tobytes()
    with pytest.raises(InvalidArgumentError, match="closed"):
        file.data("half")
    other = open_gguf(tmp_path / "m.gguf")
    other.close()
    with pytest.raises(InvalidArgumentError, match=r"after close"):
        other.metadata["a.text"]
    with pytest.raises(InvalidArgumentError, match="no tensor 'nothing'"):
        open_gguf(tmp_path / "m.gguf").data("nothing")


def test_threads_may_share_a_file(tmp_path: Path) -> None:
    with open_gguf(write_gguf(tmp_path / "m.gguf", METADATA, tensors())) as file:
        wrong: list[str] = []

        def read() -> None:
            for _ in range(50):
                if file.metadata["arr.text"] != METADATA["arr.text"]:
                    wrong.append("metadata")
                if file.data("half").tobytes() != tensors()["half"].tobytes():
                    wrong.append("data")

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_opening_imports_no_numpy(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", METADATA, tensors())
    code = (
        "import sys; from llama3jit.files.gguf import open_gguf\n"
        f"assert open_gguf({str(path)!r}).metadata['a.uint32'] == 7\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
