"""Llama(model_path, ...) and Llama.from_pretrained: llama-cpp-python's arguments, each by name."""

import inspect

import pytest
from hub_server import pointing_at
from test_load import byte_vocabulary
from tiny_model import tiny_model

import llama3jit
from llama3jit.errors import DownloadError, InvalidArgumentError
from llama3jit.files.store import default_store
from llama3jit.openai.options import (
    OURS,
    REFUSED,
    WITHOUT_EFFECT,
    Options,
    check_device,
    load_options,
)

# Of llama-cpp-python 0.3.36, by llama.py; `kwargs` is not used there.
PARAMETERS = """
n_gpu_layers split_mode main_gpu tensor_split vocab_only use_mmap use_mlock kv_overrides seed n_ctx
n_batch n_ubatch n_threads n_threads_batch rope_scaling_type pooling_type attention_type
rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow
yarn_orig_ctx logits_all embedding offload_kqv flash_attn op_offload swa_full no_perf
last_n_tokens_size lora_base lora_scale lora_path numa chat_format chat_handler draft_model
tokenizer type_k type_v spm_infill verbose
"""
# What llama-cpp-python has for each of those that are refused otherwise.
NEUTRAL = {
    "split_mode": 1,
    "tensor_split": None,
    "vocab_only": False,
    "kv_overrides": None,
    "rope_scaling_type": -1,
    "attention_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "lora_base": None,
    "lora_scale": 1.0,
    "lora_path": None,
    "chat_handler": None,
    "draft_model": None,
    "tokenizer": None,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny_model(folder / "tiny.gguf", n_layer=1, **byte_vocabulary()).path


def test_every_argument_of_llama_cpp_python_is_known():
    assert set(Options.__annotations__) == {*PARAMETERS.split(), *OURS}
    assert {*OURS} == {*inspect.signature(llama3jit.load).parameters} - {"path_or_name", "n_ctx"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_results_is_refused_by_name(name):
    load_options("m", {name: NEUTRAL[name]})
    with pytest.raises(InvalidArgumentError, match=f"^{name} is .*, and .*; leave it out"):
        load_options("m", {name: 7.5})
    with pytest.raises(InvalidArgumentError, match=f"^{name} is 'x'"):
        load_options("m", {name: "x"})


def test_what_changes_nothing_is_taken():
    plain = load_options("m", {})
    for value in (True, False, None, 512):
        assert load_options("m", dict.fromkeys(WITHOUT_EFFECT, value)) == plain


def test_what_has_a_meaning():
    ours, defaults = load_options("m", {})
    assert ours == {"n_ctx": 512, "threads": None, "device": "cpu", "kv_dtype": "f16"}
    assert (defaults.model, defaults.seed, defaults.pooling) == ("m", None, "none")
    ours, defaults = load_options(
        "m",
        {
            "n_ctx": 0,
            "n_threads": 3,
            "n_gpu_layers": -1,
            "type_k": 8,
            "type_v": 8,
            "chat_format": "llama-3",
            "seed": 5,
            "pooling_type": 3,
            "last_n_tokens_size": 7,
            "precision": "exact",
        },
    )
    assert ours == {
        "precision": "exact",
        "n_ctx": None,
        "threads": 3,
        "device": "auto",
        "kv_dtype": "q8_0",
        "chat_template": "llama3",
    }
    assert (defaults.seed, defaults.pooling, defaults.repeat_last_n) == (5, "last", 7)
    assert load_options("m", {"n_gpu_layers": -1, "main_gpu": 1})[0]["device"] == "cuda:1"
    for seed in (-1, 0xFFFFFFFF):
        assert load_options("m", {"seed": seed})[1].seed is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_threds": 3}, "unknown argument 'n_threds' of Llama; did you mean 'n_threads'"),
        ({"n_gpu_layers": -2}, "^n_gpu_layers is -2"),
        ({"n_gpu_layers": "all"}, "^n_gpu_layers is 'all'"),
        ({"main_gpu": -1}, "^main_gpu is -1"),
        ({"type_k": 8}, "type_k is 8 and type_v is None: keys and values are kept alike"),
        ({"type_k": 30, "type_v": 30}, "^type_k is 30"),
        ({"pooling_type": 4}, "^pooling_type is 4"),
        ({"chat_format": "functionary"}, "^chat_format is 'functionary': expected one of chatml"),
        ({"chat_format": "chatml", "chat_template": "x"}, "chat_format and chat_template are both"),
        ({"n_threads": 1, "threads": 1}, "n_threads and threads are both given"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        load_options("m", options)


def test_some_layers_on_the_gpu_are_refused(path):
    with pytest.raises(InvalidArgumentError, match="n_gpu_layers is 1 of 2"):
        load_options(tiny_two_layers(path), {"n_gpu_layers": 1})
    assert load_options(path, {"n_gpu_layers": 99})[0]["device"] == "auto"


def tiny_two_layers(path):
    return tiny_model(path.parent / "two.gguf", n_layer=2, **byte_vocabulary()).path


def test_a_model_opens_and_answers(path):
    with llama3jit.Llama(model_path=str(path), device="reference", verbose=False) as llm:
        assert isinstance(llm, llama3jit.Llama)
        assert llm.n_ctx == 512
        answer = llm("ab", max_tokens=3)
        assert answer["model"] == str(path)
        assert llm.generate("ab", max_tokens=2).completion_tokens <= 2
        vectors = llm.create_embedding("ab")["data"][0]["embedding"]
        assert len(vectors) == len(llm.tokenize("ab"))  # one for each token


def test_a_seed_is_that_of_every_call(path):
    with llama3jit.Llama(path, device="reference", seed=4) as llm:
        texts = {llm("ab", max_tokens=8)["choices"][0]["text"] for _ in range(2)}
        assert texts == {llm("ab", max_tokens=8, seed=4)["choices"][0]["text"]}


def test_layers_that_find_no_gpu_are_not_silent():
    with pytest.warns(UserWarning, match="n_gpu_layers is -1, and no GPU can be used"):
        check_device("cpu", {"n_gpu_layers": -1})
    check_device("cuda:0", {"n_gpu_layers": -1})
    check_device("cpu", {})


@pytest.fixture
def hub(monkeypatch, tmp_path, path):
    """A hub with one repository, and an empty store."""
    files = ("m-Q4_0.gguf", "m-Q8_0.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf")
    content = {"README.md": b"# Models"} | dict.fromkeys(files, path.read_bytes())
    monkeypatch.setenv("LLAMA3JIT_MODELS", str(tmp_path / "models"))
    with pointing_at("org/repo", content, monkeypatch) as hub:
        yield hub


def bodies(hub):
    return [path for path, *_ in hub.asked if path.startswith("/cdn/")]


def test_from_pretrained_pulls(hub):
    with llama3jit.Llama.from_pretrained(
        repo_id="org/repo", filename="*Q8_0.gguf", verbose=False, device="reference"
    ) as llm:
        assert llm("ab", max_tokens=1)["usage"]["completion_tokens"] <= 1
    (model,) = default_store().models()
    assert (model.name, model.source) == ("m-q8_0", "hf:org/repo/m-Q8_0.gguf")
    asked = len(hub.asked)
    for name in ("m-Q8_0.gguf", "*Q8_0.gguf"):
        llama3jit.Llama.from_pretrained("org/repo", name, device="reference").close()
    assert len(hub.asked) == asked + 1  # what the pattern matches
    assert bodies(hub) == ["/cdn/m-Q8_0.gguf"]


def test_a_name_that_another_model_has(hub, path):
    store = default_store()
    store.root.mkdir()
    (store.root / "m-q8_0.gguf").write_bytes(path.read_bytes())
    for _ in range(2):
        llama3jit.Llama.from_pretrained("org/repo", "m-Q8_0.gguf", device="reference").close()
    assert [model.name for model in store.models()] == ["m-q8_0", "org-repo-m-q8_0"]
    assert len(bodies(hub)) == 1


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("big*", {}),
        ("m-Q8_0.gguf", {"additional_files": ["README.md"]}),
        ("m-Q8_0.gguf", {"local_dir": "here"}),
        ("m-Q8_0.gguf", {"cache_dir": "here"}),
    ],
)
def test_from_pretrained_leaves_the_rest_to_huggingface_hub(hub, path, file, options, monkeypatch):
    fetched = []

    def download(repo_id, file, **folders):
        fetched.append(file)
        assert folders == {"local_dir": None, "cache_dir": None} | {
            name: value for name, value in options.items() if name != "additional_files"
        }
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    llama3jit.Llama.from_pretrained("org/repo", file, device="reference", **options).close()
    shards = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]
    one = ["m-Q8_0.gguf", *options.get("additional_files", ())]
    assert fetched == (shards if file == "big*" else one)
    assert default_store().models() == []


@pytest.mark.parametrize(
    ("repo", "file", "message"),
    [
        ("org/repo", "*.gguf", r"4 files match '\*.gguf'; name one of m-Q4_0.gguf, m-Q8_0"),
        ("org/repo", "none", "0 files match 'none'; name one of m-Q4_0.gguf"),
        ("org/none", "*", "hf:org/none: there is no such repository"),
    ],
)
def test_from_pretrained_says_what_there_is(hub, repo, file, message):
    with pytest.raises(DownloadError, match=message):
        llama3jit.Llama.from_pretrained(repo, file)
    assert bodies(hub) == []
