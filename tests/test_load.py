"""load() on real files: tiny models with random weights, run by the reference device."""

import threading

import numpy as np
import pytest
from tiny_model import tiny_model

import llama3jit
from llama3jit.errors import (
    InvalidArgumentError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedError,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_vocabulary():
    """Metadata of a byte-level vocabulary of 300 tokens without merges that matter."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
    tokens = [letters[b] for b in range(256)]
    pairs = [("q", chr(ord("a") + i)) for i in range(26)] + [("z", c) for c in "abcdefghijklmno"]
    tokens += ["".join(pair) for pair in pairs] + SPECIAL
    return {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "gpt-2",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__token_type": [1] * (len(tokens) - 3) + [3] * 3,
        "tokenizer__ggml__merges": [" ".join(pair) for pair in pairs],
        "tokenizer__ggml__bos_token_id": len(tokens) - 3,
        "tokenizer__ggml__eos_token_id": len(tokens) - 1,
        "tokenizer__ggml__add_bos_token": True,
        "tokenizer__chat_template": CHATML,
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny_model(folder / "tiny.gguf", n_layer=1, **byte_vocabulary()).path


@pytest.fixture(scope="module")
def llm(path):
    with llama3jit.load(path, device="reference", n_ctx=128) as opened:
        yield opened


def test_greedy_follows_the_logits(llm):
    result = llm.generate("ab", max_tokens=12, temperature=0)
    assert result.prompt_tokens == 3
    ids = llm.tokenize("ab") + result.tokens
    chosen = llm.logits(ids).argmax(axis=1)
    np.testing.assert_array_equal(chosen[2 : 2 + len(result.tokens)], result.tokens)
    assert result.stats.load_s > 0


def test_chat_renders_the_template_of_the_file(llm, path):
    message = [{"role": "user", "content": "hi <|im_end|>"}]
    result = llm.chat(message, max_tokens=2, seed=0)
    # BOS, the scaffold's three special tokens, and a token a byte for the rest.
    parts = ["user\n", "hi <|im_end|>", "\n", "assistant\n"]
    assert result.prompt_tokens == 1 + 3 + sum(map(len, parts))
    with llama3jit.load(path, device="reference", chat_template="{{ bos_token }}x") as other:
        assert other.chat(message, max_tokens=2, seed=0).prompt_tokens == 2


def test_threads_give_what_they_give_alone(llm):
    def ask(i):
        return llm.generate("a" * (i + 1), max_tokens=6 + i, seed=i).tokens

    alone = [ask(i) for i in range(4)]
    together = {}
    threads = [threading.Thread(target=lambda i=i: together.update({i: ask(i)})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [together[i] for i in range(4)] == alone


def test_what_cannot_be_loaded_is_named(path, tmp_path):
    with pytest.raises(ModelNotFoundError, match="no-such-model"):
        llama3jit.load("no-such-model")
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ModelFormatError, match=r"text\.gguf"):
        llama3jit.load(tmp_path / "text.gguf")
    strange = tiny_model(tmp_path / "strange.gguf", general__architecture="mamba").path
    with pytest.raises(UnsupportedError, match="mamba"):
        llama3jit.load(strange)
    for name, value in (("device", "tpu"), ("kv_dtype", "q3"), ("precision", "sloppy")):
        with pytest.raises(InvalidArgumentError, match=f"{name} is '{value}'"):
            llama3jit.load(path, **{name: value})


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0"])
def test_a_quantised_cache(tmp_path, path, kv_dtype, device):
    """Text comes out where head_dim allows, and elsewhere the error says what to use."""
    tiny = tiny_model(tmp_path / "m.gguf", n_layer=1, head_dim=32, **byte_vocabulary())
    with llama3jit.load(tiny.path, device=device, n_ctx=128, kv_dtype=kv_dtype) as llm:
        result = llm.generate("ab", max_tokens=70, seed=1)
        assert result.completion_tokens > 0
        logits = llm.logits(llm.tokenize("ab" * 30))
        assert np.isfinite(logits).all()
    with pytest.raises(InvalidArgumentError, match=r"head_dim is 16, .*; use f16 or f32"):
        llama3jit.load(path, device=device, kv_dtype=kv_dtype)


@pytest.mark.parametrize("model", [None, b"x", 5, [], object()])
def test_a_model_that_is_neither_a_name_nor_a_path(model):
    with pytest.raises(InvalidArgumentError, match=r"the model is .*; expected a name or the path"):
        llama3jit.load(model)


def test_a_path_of_another_class(path):
    class Elsewhere:
        def __fspath__(self):
            return str(path)

    llama3jit.load(Elsewhere(), device="reference", n_ctx=16).close()


def test_progress_and_templates_that_are_none(path):
    with pytest.raises(InvalidArgumentError, match="progress is 5; expected a function"):
        llama3jit.load(path, progress=5)
    for template in (5, b"x", [], "llama4", ""):
        with (
            llama3jit.load(path, device="reference", chat_template=template) as llm,
            pytest.raises(InvalidArgumentError, match=r"chat_template is .*llama3, chatml"),
        ):
            llm.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("vocab", [299, 301])
def test_a_vocabulary_of_another_model_is_refused(tmp_path, vocab):
    other = tiny_model(tmp_path / "other.gguf", n_layer=1, vocab=vocab, **byte_vocabulary()).path
    with pytest.raises(ModelFormatError, match=f"has 300 tokens, .* rows for {vocab}"):
        llama3jit.load(other, device="reference")


def test_a_vocabulary_that_is_broken_closes_what_was_opened(tmp_path, monkeypatch):
    vocabulary = byte_vocabulary() | {"tokenizer__ggml__model": "morse"}
    broken = tiny_model(tmp_path / "broken.gguf", n_layer=1, **vocabulary).path
    closed = []
    import llama3jit.devices.interpreter as interpreter
    from llama3jit.files.gguf import GGUFFile

    close = interpreter.Interpreter.close
    monkeypatch.setattr(
        interpreter.Interpreter, "close", lambda self: (closed.append("runner"), close(self))
    )
    unmap = GGUFFile.close
    monkeypatch.setattr(GGUFFile, "close", lambda self: (closed.append("file"), unmap(self)))
    with pytest.raises(llama3jit.Llama3JitError, match="morse"):
        llama3jit.load(broken, device="reference")
    assert closed == ["runner", "file"]


def test_what_an_open_model_says_of_itself(llm):
    assert (llm.n_ctx, llm.vocab_size, llm.device) == (128, 300, "reference")
    assert llm.metadata["general.architecture"] == "llama"
    assert sum(llm.memory.values()) > 0


def test_another_model_has_another_fingerprint(llm, path, tmp_path):
    fingerprint = llm._identity.fingerprint()
    others = [
        tiny_model(tmp_path / "seed.gguf", n_layer=1, seed=1, **byte_vocabulary()).path,
        tiny_model(tmp_path / "wide.gguf", n_layer=1, n_ff=128, **byte_vocabulary()).path,
    ]
    for other in (path, *others):
        with llama3jit.load(other, device="reference", n_ctx=64) as opened:
            assert (opened._identity.fingerprint() == fingerprint) == (other == path)
