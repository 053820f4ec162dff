"""A model's tokenizer as files: what the target service sends, the orchestrator uses and the handshake compares.

Only the `tokenizers` library is needed, so a process without torch can read, hash and apply them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")

_TOKENIZER_JSON = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS_MAP = "special_tokens_map.json"  # where older repositories keep them
_CHAT_TEMPLATE = "chat_template.jinja"

# Padding is never computed here, and models of one family often differ in nothing else.
_HASHED_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token")


class TokenizerFilesError(ValueError):
    """The files are missing or damaged; the message names the file and says what to do."""


@dataclass(frozen=True)
class TokenizerFiles:
    """Content of a tokenizer's files, in Hugging Face's layout on disk."""

    tokenizer_json: bytes
    """tokenizer.json, the format of the `tokenizers` library."""
    chat_template: str
    """Jinja template; empty if the model has none."""
    special_tokens: dict[str, str]
    """Text of the special tokens that the model has, by their names in `SPECIAL_TOKEN_NAMES`."""

    @classmethod
    def load(cls, directory: str | Path) -> TokenizerFiles:
        """Read the files of a model directory.

        Raises:
            TokenizerFilesError: there is no tokenizer.json, or a file is not what its name says.
        """
        directory = Path(directory)
        try:
            tokenizer_json = (directory / _TOKENIZER_JSON).read_bytes()
        except FileNotFoundError:
            raise TokenizerFilesError(
                f"{directory} has no {_TOKENIZER_JSON}; a fast tokenizer file (of the tokenizers library) is required: "
                "save one there with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            ) from None
        config = _read_object(directory / _TOKENIZER_CONFIG)
        special_tokens = _special_tokens(_read_object(directory / _SPECIAL_TOKENS_MAP)) | _special_tokens(config)
        template_file = directory / _CHAT_TEMPLATE
        if template_file.exists():
            try:
                chat_template = template_file.read_text(encoding="utf-8")
            except ValueError as error:
                raise TokenizerFilesError(f"{template_file} is not UTF-8 text; get an intact copy of it") from error
        else:
            chat_template = _chat_template(config.get("chat_template"))
        return cls(tokenizer_json, chat_template, special_tokens)

    def save(self, directory: str | Path) -> None:
        """Write the files into an existing directory, in the layout that transformers reads."""
        directory = Path(directory)
        (directory / _TOKENIZER_JSON).write_bytes(self.tokenizer_json)
        if self.chat_template:
            (directory / _CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special_tokens}
        (directory / _TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")

    def tokenizer(self) -> Tokenizer:
        """A new tokenizer.

        Raises:
            TokenizerFilesError: tokenizer.json cannot be read.
        """
        return _tokenizer(self.tokenizer_json)


def tokenizer_hash(files: TokenizerFiles) -> str:
    """SHA-256, in hex, of the id -> token table (added tokens included) and the special ids.

    Two tokenizers with equal hashes give every id the same meaning, however their JSON is written. The special ids are
    those of bos, eos and unk; one that the table does not have counts as absent.

    Raises:
        TokenizerFilesError: tokenizer.json is damaged.
    """
    tokens_by_id = _id_table(files.tokenizer_json)
    ids_by_token = {token: token_id for token_id, token in tokens_by_id.items()}
    special_ids = {
        name: ids_by_token[files.special_tokens[name]]
        for name in _HASHED_SPECIAL_TOKENS
        if files.special_tokens.get(name) in ids_by_token
    }
    canonical = json.dumps([sorted(tokens_by_id.items()), special_ids], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def vocab_size(files: TokenizerFiles) -> int:
    """Number of token ids that exist, which is the highest one + 1, whatever a checkpoint pads to.

    Raises:
        TokenizerFilesError: tokenizer.json is damaged.
    """
    return len(_id_table(files.tokenizer_json))


def _tokenizer(tokenizer_json: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(tokenizer_json)
    # The library raises a bare Exception for a malformed file.
    except Exception as error:
        raise TokenizerFilesError(f"{_TOKENIZER_JSON} cannot be read: {error}; get an intact copy of it") from error


@lru_cache(maxsize=1)
def _id_table(tokenizer_json: bytes) -> Mapping[int, str]:
    """Id -> token, for every id from 0 on.

    An id without a token would decode to nothing. Where it comes before the added tokens it is worse: the library gives
    these the next free ids, without a word, and they no longer are the ones that the model was trained with.

    Large ones take a second to read, and hash and size are asked for one after the other: so the last is kept.
    """
    tokenizer = _tokenizer(tokenizer_json)
    added = json.loads(tokenizer_json).get("added_tokens") or ()
    table = {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=False).items()}
    table |= {token["id"]: token["content"] for token in added}
    if not table:
        raise TokenizerFilesError(f"{_TOKENIZER_JSON} has an empty vocabulary; get an intact copy of it")
    hole = next((token_id for token_id in range(len(table)) if token_id not in table), None)
    if hole is not None:
        raise TokenizerFilesError(
            f"{_TOKENIZER_JSON} has no token for id {hole}, though it has higher ids, and these would change their "
            "meaning; get an intact copy of it, or fill the gap with added tokens"
        )
    if any(tokenizer.token_to_id(token) != token_id for token_id, token in table.items()):
        raise TokenizerFilesError(f"{_TOKENIZER_JSON} gives two ids to one token; get an intact copy of it")
    return table


def _read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerFilesError(f"{path} is not JSON: {error}; get an intact copy of it") from error
    if not isinstance(content, dict):
        raise TokenizerFilesError(f"{path} does not hold a JSON object; get an intact copy of it")
    return content


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Special tokens of a tokenizer_config.json, each written as its text or as an object with a `content`."""
    found = {}
    for name in SPECIAL_TOKEN_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _chat_template(value: object) -> str:
    """Chat template of a tokenizer_config.json: one text, or a list of named ones of which "default" is taken."""
    if isinstance(value, list):
        value = next(
            (each.get("template") for each in value if isinstance(each, dict) and each.get("name") == "default"), None
        )
    return value if isinstance(value, str) else ""
