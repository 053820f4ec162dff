"""Small tokenizers, one for each way in which real ones write text into tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.tiny_models import tiny_tokenizer_files

BOS_TOKEN, EOS_TOKEN, UNKNOWN_TOKEN = "<s>", "</s>", "<unk>"
SPECIAL_TOKENS = (BOS_TOKEN, EOS_TOKEN, UNKNOWN_TOKEN)
_WORDS = ("a", "b", "é", "한", ".", "'", "\n", "▁", "▁▁", "▁a", "▁b", "ab", "▁▁▁▁", "▁한")
_WORD_PIECES = ("hello", "world", "##s", "##ing", "a", "b", ",", ".", "'", "n't", "é", "한", "##é", "!", "?", "##한")


def byte_level() -> Tokenizer:
    """Bytes and merges of them, as GPT-2, Llama 3, Qwen and SmolLM; some tokens cross the borders of characters."""
    tokenizer = tiny_tokenizer_files().tokenizer()
    tokenizer.add_tokens([AddedToken("<tool>"), AddedToken("한"), AddedToken("\ufffd")])
    return tokenizer


def llama_like() -> Tokenizer:
    """Words that begin with ▁, and bytes for what has no token, as Llama 2 and Mistral; the first space is dropped."""
    tokenizer = _sentence_pieces()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS_TOKEN} $A", special_tokens=[(BOS_TOKEN, tokenizer.token_to_id(BOS_TOKEN))]
    )
    return tokenizer


def gemma_like() -> Tokenizer:
    """The same without a first space, as Gemma."""
    tokenizer = _sentence_pieces()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def metaspace() -> Tokenizer:
    """The same with the decoder that knows ▁ itself."""
    tokenizer = _sentence_pieces()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def word_pieces() -> Tokenizer:
    """Words and ## continuations, as BERT; spaces are invented between words and removed before points."""
    tokenizer = Tokenizer(models.WordPiece(vocab=_vocab(_WORD_PIECES), unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _with_special_tokens(tokenizer)


def _sentence_pieces() -> Tokenizer:
    tokens = (*(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS)
    merges = [("▁", "a"), ("▁", "b"), ("▁", "▁"), ("a", "b"), ("▁▁", "▁▁"), ("▁", "한")]
    model = models.BPE(vocab=_vocab(tokens), merges=merges, unk_token=UNKNOWN_TOKEN, byte_fallback=True, fuse_unk=True)
    return _with_special_tokens(Tokenizer(model))


def _vocab(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate((*SPECIAL_TOKENS, *tokens))}


def _with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


BYTE_FALLBACK = (llama_like, gemma_like, metaspace)


def byte_symbols() -> list[str]:
    """The character by which byte-level tokens write each byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = itertools.count(256)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
