import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from specdec.tokenizer_files import TokenizerFiles, TokenizerFilesError, tokenizer_hash, vocab_size
from tests.tiny_models import BOS_TOKEN, CHAT_TEMPLATE, EOS_TOKEN, tiny_tokenizer_files


def edited(files: TokenizerFiles, *tokens: AddedToken) -> TokenizerFiles:
    tokenizer = files.tokenizer()
    tokenizer.add_special_tokens(list(tokens))
    return replace(files, tokenizer_json=tokenizer.to_str().encode())


def with_vocab(files: TokenizerFiles, vocab: dict[str, int]) -> TokenizerFiles:
    content = json.loads(files.tokenizer_json)
    content["model"]["vocab"] = vocab
    return replace(files, tokenizer_json=json.dumps(content).encode())


def test_files_survive_a_round_trip(tmp_path: Path) -> None:
    files = tiny_tokenizer_files()
    files.save(tmp_path)
    assert TokenizerFiles.load(tmp_path) == files


def test_transformers_reads_what_was_saved(tmp_path: Path) -> None:
    files = tiny_tokenizer_files()
    files.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = "Hello wörld 🔥 " + EOS_TOKEN
    assert theirs(text).input_ids == files.tokenizer().encode(text).ids
    assert theirs.bos_token == BOS_TOKEN
    assert theirs.eos_token == EOS_TOKEN
    assert theirs.chat_template == CHAT_TEMPLATE


def test_no_chat_template_leaves_no_file(tmp_path: Path) -> None:
    replace(tiny_tokenizer_files(), chat_template="").save(tmp_path)
    assert not (tmp_path / "chat_template.jinja").exists()
    assert TokenizerFiles.load(tmp_path).chat_template == ""


@pytest.mark.parametrize(
    "value",
    [
        "of the config",
        [{"name": "tool_use", "template": "another"}, {"name": "default", "template": "of the config"}],
    ],
)
def test_chat_template_inside_the_config(tmp_path: Path, value: object) -> None:
    replace(tiny_tokenizer_files(), chat_template="").save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    assert TokenizerFiles.load(tmp_path).chat_template == "of the config"


def test_chat_template_file_wins_over_the_config(tmp_path: Path) -> None:
    tiny_tokenizer_files().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "of the config"}))
    assert TokenizerFiles.load(tmp_path).chat_template == CHAT_TEMPLATE


def test_special_tokens_as_objects_and_in_the_older_file(tmp_path: Path) -> None:
    tiny_tokenizer_files().save(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "old", "pad_token": "pad"}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": BOS_TOKEN, "lstrip": False}, "eos_token": EOS_TOKEN, "unk_token": None})
    )
    assert TokenizerFiles.load(tmp_path).special_tokens == {
        "bos_token": BOS_TOKEN,
        "eos_token": EOS_TOKEN,
        "pad_token": "pad",
    }


def test_files_alone_are_enough(tmp_path: Path) -> None:
    tiny_tokenizer_files().save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").unlink()
    loaded = TokenizerFiles.load(tmp_path)
    assert loaded.chat_template == ""
    assert loaded.special_tokens == {}


def test_hash_does_not_depend_on_formatting() -> None:
    files = tiny_tokenizer_files()
    content = json.loads(files.tokenizer_json)
    content["model"]["vocab"] = dict(reversed(content["model"]["vocab"].items()))
    other = json.dumps(dict(reversed(content.items())), indent=4, ensure_ascii=True).encode()
    assert other != files.tokenizer_json
    assert tokenizer_hash(replace(files, tokenizer_json=other)) == tokenizer_hash(files)
    reordered = dict(reversed(files.special_tokens.items()))
    assert tokenizer_hash(replace(files, special_tokens=reordered)) == tokenizer_hash(files)


def test_hash_is_a_sha256_that_never_changes() -> None:
    assert tokenizer_hash(tiny_tokenizer_files()) == "908a39d7c6cedbf43a5e8ba2b5fdb3f642ad15a5ec3dcdbf6b5ff5b8d1a80785"


def test_hash_ignores_template_and_padding() -> None:
    files = tiny_tokenizer_files()
    assert tokenizer_hash(replace(files, chat_template="x")) == tokenizer_hash(files)
    padded = files.special_tokens | {"pad_token": EOS_TOKEN}
    assert tokenizer_hash(replace(files, special_tokens=padded)) == tokenizer_hash(files)


def test_hash_sees_tokens_added_tokens_and_special_ids() -> None:
    files = tiny_tokenizer_files()
    vocab = json.loads(files.tokenizer_json)["model"]["vocab"]
    swapped = with_vocab(files, vocab | {"a": vocab["b"], "b": vocab["a"]})
    more = edited(files, AddedToken("<|more|>", special=True))
    other_eos = replace(files, special_tokens=files.special_tokens | {"eos_token": BOS_TOKEN})
    no_bos = replace(files, special_tokens={"eos_token": EOS_TOKEN})
    assert len({tokenizer_hash(each) for each in (files, swapped, more, other_eos, no_bos)}) == 5


def test_special_token_outside_the_table_counts_as_absent() -> None:
    files = tiny_tokenizer_files()
    unknown = replace(files, special_tokens=files.special_tokens | {"unk_token": "<not there>"})
    assert tokenizer_hash(unknown) == tokenizer_hash(files)


def test_vocab_size_is_the_highest_id_plus_one() -> None:
    files = tiny_tokenizer_files(300)
    assert vocab_size(files) == 300
    assert vocab_size(edited(files, AddedToken("<|more|>", special=True))) == 301


def test_hole_in_the_vocabulary_is_refused() -> None:
    files = tiny_tokenizer_files(300)
    vocab = json.loads(files.tokenizer_json)["model"]["vocab"]
    hole = vocab.pop("~")
    damaged = with_vocab(files, vocab)
    with pytest.raises(TokenizerFilesError, match=rf"no token for id {hole}, .*intact copy"):
        vocab_size(damaged)
    with pytest.raises(TokenizerFilesError, match=f"no token for id {hole}"):
        tokenizer_hash(damaged)


def with_added_token(files: TokenizerFiles, token_id: int, content: str) -> TokenizerFiles:
    """As a file may say it; the library's own writer would number it right."""
    tokenizer = json.loads(files.tokenizer_json)
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": token_id, "content": content})
    return replace(files, tokenizer_json=json.dumps(tokenizer).encode())


def test_hole_before_the_added_tokens_is_refused() -> None:
    late = with_added_token(tiny_tokenizer_files(300), 310, "<|late|>")
    assert late.tokenizer().token_to_id("<|late|>") == 300
    with pytest.raises(TokenizerFilesError, match="no token for id 300"):
        vocab_size(late)


def test_token_with_two_ids_is_refused() -> None:
    with pytest.raises(TokenizerFilesError, match="two ids"):
        vocab_size(with_added_token(tiny_tokenizer_files(300), 300, "a"))


def test_missing_tokenizer_json_says_what_is_required(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(TokenizerFilesError, match=r"no tokenizer\.json; a fast tokenizer file .* is required"):
        TokenizerFiles.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": 3}'])
def test_damaged_tokenizer_json(content: bytes) -> None:
    with pytest.raises(TokenizerFilesError, match=r"tokenizer\.json cannot be read"):
        TokenizerFiles(content, "", {}).tokenizer()


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_damaged_config(tmp_path: Path, content: str) -> None:
    tiny_tokenizer_files().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(TokenizerFilesError, match=r"tokenizer_config\.json .*intact copy"):
        TokenizerFiles.load(tmp_path)


def test_empty_vocabulary_is_refused() -> None:
    from tokenizers.models import BPE

    with pytest.raises(TokenizerFilesError, match="empty vocabulary"):
        vocab_size(TokenizerFiles(Tokenizer(BPE()).to_str().encode(), "", {}))


def test_every_id_of_the_tiny_tokenizer_decodes() -> None:
    for size in (64, 258, 320, 2000):
        files = tiny_tokenizer_files(size)
        tokenizer = files.tokenizer()
        assert vocab_size(files) == size
        assert all(tokenizer.decode([token_id], skip_special_tokens=False) for token_id in range(size))


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = "import sys, specdec.tokenizer_files; sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
