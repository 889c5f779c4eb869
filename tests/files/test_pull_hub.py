"""Pulling from a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gguf_writer import gguf_bytes
from hub_server import Hub, pointing_at
from pulling import RAW, SHA256, interrupt_at, left_over

from llama3jit.errors import DownloadError, InvalidArgumentError, ModelNotFoundError
from llama3jit.files import from_hub
from llama3jit.files.from_hub import parse
from llama3jit.files.pull import pull
from llama3jit.files.store import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama3jit.files.store import Store

REPO = "org/Demo-1B-GGUF"
SMALL = gguf_bytes({"general.architecture": "llama"})
FILES = {
    "README.md": b"# Demo",
    "Demo-1B-Q4_K_M.gguf": RAW,
    "Demo-1B-Q4_K_S.gguf": SMALL,
    "Demo-1B-BF16.gguf": SMALL,
    "sub folder/Demo-1B-f16.gguf": SMALL,
    "mmproj-Demo-F32.gguf": SMALL,
    "Demo-1B-UD-Q5_K_M.gguf": SMALL,
    "Demo-1B-Q5_K_M.gguf": SMALL,
    "Demo-1B-Q8_0-00001-of-00002.gguf": SMALL,
    "Demo-1B-Q8_0-00002-of-00002.gguf": SMALL,
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with pointing_at(REPO, FILES, monkeypatch) as hub:
        yield hub


def test_a_file(store: Store, hub: Hub) -> None:
    seen: list[tuple[str, int, int]] = []
    source = f"hf:{REPO}/Demo-1B-Q4_K_M.gguf"
    path = pull(source, store=store, progress=lambda *step: seen.append(step))
    assert path == store.root / "demo-1b-q4_k_m.gguf"
    assert path.read_bytes() == RAW
    model = store.find("demo-1b-q4_k_m")
    assert model is not None
    assert (model.sha256, model.source) == (SHA256, source)
    assert ("downloading", len(RAW), len(RAW)) in seen
    assert left_over(store) == ["demo-1b-q4_k_m.gguf", "demo-1b-q4_k_m.json"]


def test_a_type_and_what_finds_the_model_later(
    store: Store, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_type = f"hf:{REPO}:q4_k_m"
    with pytest.raises(ModelNotFoundError, match=f"fetch it by: llama3jit pull {by_type}"):
        resolve(by_type, store)
    path = pull(by_type, store=store)
    asked = len(hub.asked)
    for name in (by_type, f"hf:{REPO}/Demo-1B-Q4_K_M.gguf", "demo-1b-q4_k_m"):
        assert pull(name, store=store) == resolve(name, store) == path
    assert len(hub.asked) == asked, "nothing is asked for again"
    assert store.remove(by_type).name == "demo-1b-q4_k_m"
    assert store.models() == []


def test_types_are_whole_words(store: Store, hub: Hub) -> None:
    files = list(FILES)
    meant = {
        kind: [file for file in files if parse(f"hf:{REPO}:{kind}").means(file)]
        for kind in ("Q4_K", "q4_k_s", "F16", "F32", "Q5_K_M", "Q8_0")
    }
    assert meant == {
        "Q4_K": [],
        "q4_k_s": ["Demo-1B-Q4_K_S.gguf"],
        "F16": ["sub folder/Demo-1B-f16.gguf"],
        "F32": [],
        "Q5_K_M": ["Demo-1B-UD-Q5_K_M.gguf", "Demo-1B-Q5_K_M.gguf"],
        "Q8_0": [f"Demo-1B-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)],
    }
    assert pull(f"hf:{REPO}:F16", store=store).read_bytes() == SMALL
    assert store.find("demo-1b-f16").source == f"hf:{REPO}/sub folder/Demo-1B-f16.gguf"


def test_a_revision_and_a_name(store: Store, hub: Hub) -> None:
    path = pull(f"hf:{REPO}@v1:Q4_K_S", store=store, name="Mine")
    assert path.name == "mine.gguf"
    assert any(path.startswith(f"/{REPO}/resolve/v1/") for path, _, _ in hub.asked)
    assert resolve(f"hf:{REPO}@v1:Q4_K_S", store) == path
    assert store.find(f"hf:{REPO}:Q4_K_S") is None, "that is another revision"


def test_it_goes_on_where_it_stopped(store: Store, hub: Hub) -> None:
    source = f"hf:{REPO}:Q4_K_M"
    with pytest.raises(KeyboardInterrupt):
        pull(source, store=store, progress=interrupt_at("downloading", 1 << 20))
    assert left_over(store) == [".demo-1b-q4_k_m.part", ".demo-1b-q4_k_m.part.json"]
    hub.cut = 1 << 20
    assert pull(source, store=store).read_bytes() == RAW
    ranges = [asked for path, asked, _ in hub.asked if path.startswith("/cdn")]
    assert ranges[0] is None
    assert [int(asked[6:-1]) >> 20 for asked in ranges[1:]] == [1, 2]


def test_what_arrives_is_checked(store: Store, hub: Hub) -> None:
    hub.claimed["Demo-1B-Q4_K_M.gguf"] = "0" * 64
    with pytest.raises(DownloadError, match=rf"hf:{REPO}/.*has the SHA-256 {SHA256}, expected 000"):
        pull(f"hf:{REPO}:Q4_K_M", store=store)
    assert left_over(store) == []


def test_a_token_opens_a_gated_repository_and_goes_nowhere_else(
    store: Store, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = "hf_secret"
    for hub.hidden in (False, True):
        with pytest.raises(DownloadError, match=r"accept the terms .* set HF_TOKEN") as caught:
            pull(f"hf:{REPO}:Q4_K_M", store=store)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull(f"hf:{REPO}:Q4_K_M", store=store).read_bytes() == RAW
    assert {token for path, _, token in hub.asked if path.startswith("/cdn")} == {None}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"hf:{REPO}/Demo-1B-Q4_K.gguf", "no such file; did you mean Demo-1B-Q4_K_"),
        (f"hf:{REPO}:IQ2_M", "no such file; there are Demo-1B-Q4_K_M.gguf, "),
        (f"hf:{REPO}:Q5_K_M", "several files; name one: hf:org/Demo-1B-GGUF/Demo-1B-UD-Q5"),
        (f"hf:{REPO}:Q8_0", "a model of 2 shards, .*-00001-of-00002.gguf, .*-00002-of-"),
        ("hf:org/Demo-1B-GGFU:Q4_0", r"no such repository \(did you mean org/Demo-1B-GGUF\?\)"),
        ("hf:nobody/nothing:Q4_0", "no such repository; if it is private, set HF_TOKEN"),
        (f"hf:{REPO}@v9:Q4_0", "has no branch, tag or commit 'v9'"),
    ],
)
def test_what_is_not_there(store: Store, hub: Hub, source: str, message: str) -> None:
    with pytest.raises(DownloadError, match=message) as caught:
        pull(source, store=store)
    assert "\n" not in str(caught.value)
    assert not any(path.startswith("/cdn") for path, _, _ in hub.asked)


@pytest.mark.parametrize(
    "source", ["hf:org", "hf:org/repo", "hf:a/b:", "hf:a/b:K_M", "hf:a/b/../c", "hf:"]
)
def test_what_is_no_name_of_a_file(store: Store, source: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected hf:org/repo/file"):
        pull(source, store=store)


def test_no_network_and_offline(store: Store, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    path = pull(f"hf:{REPO}:Q4_K_S", store=store)
    asked = len(hub.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE forbids"):
        pull(f"hf:{REPO}:Q4_K_M", store=store)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE forbids"):
        from_hub.fetch_hub(f"hf:{REPO}/x.gguf", path, lambda done, total: None)
    assert pull(f"hf:{REPO}:Q4_K_S", store=store) == path
    assert len(hub.asked) == asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="the hub cannot be reached") as caught:
        pull(f"hf:{REPO}:Q4_K_M", store=store)
    assert "\n" not in str(caught.value)


def test_no_room_is_said_before_anything_is_fetched(
    store: Store, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    usage = shutil.disk_usage(store.root.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(DownloadError, match=r"needs 3 MB in .* 1 MB are free"):
        pull(f"hf:{REPO}:Q4_K_M", store=store)
    assert not any("/resolve/" in path for path, _, _ in hub.asked)
