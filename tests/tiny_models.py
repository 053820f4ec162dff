"""Tiny seeded models and a tokenizer for tests, built in memory."""

import itertools
import string

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.runner.attention import ATTENTION_NAME
from specdec.tokenizer_files import TokenizerFiles

TINY_VOCAB_SIZE = 320
BOS_TOKEN, EOS_TOKEN = "<|bos|>", "<|eos|>"
BOS_TOKEN_ID, EOS_TOKEN_ID = 0, 1
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tiny_llama_config(vocab_size: int = TINY_VOCAB_SIZE, layers: int = 2) -> LlamaConfig:
    """Grouped heads and enough spread in the weights that logits are far from ties."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=BOS_TOKEN_ID,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=None,
    )


def tiny_llama(seed: int = 0, vocab_size: int = TINY_VOCAB_SIZE, layers: int = 2) -> LlamaForCausalLM:
    """A float32 Llama on CPU with the ragged attention; the same seed gives the same weights."""
    config = tiny_llama_config(vocab_size, layers)
    config._attn_implementation = ATTENTION_NAME
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.train(mode=False)
    model.requires_grad_(requires_grad=False)
    return model


def tiny_tokenizer_files(vocab_size: int = TINY_VOCAB_SIZE) -> TokenizerFiles:
    """Byte-level BPE with `vocab_size` ids, each of which decodes: two special ones, the bytes, and merges of letters.

    At 258 ids and more it encodes every text; below, it knows printable ASCII first and drops other bytes.
    """
    letters = "Ġ" + string.ascii_lowercase
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda symbol: (symbol not in letters, symbol))
    symbols = itertools.chain(
        ((symbol, None) for symbol in alphabet),
        (
            ("".join(parts), ("".join(parts[:-1]), parts[-1]))
            for length in itertools.count(2)
            for parts in itertools.product(letters, repeat=length)
        ),
    )
    vocab = {BOS_TOKEN: BOS_TOKEN_ID, EOS_TOKEN: EOS_TOKEN_ID}
    merges = []
    for token, merge in itertools.islice(symbols, vocab_size - len(vocab)):
        vocab[token] = len(vocab)
        if merge is not None:
            merges.append(merge)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (BOS_TOKEN, EOS_TOKEN)]
    )
    return TokenizerFiles(
        tokenizer_json=tokenizer.to_str().encode("utf-8"),
        chat_template=CHAT_TEMPLATE,
        special_tokens={"bos_token": BOS_TOKEN, "eos_token": EOS_TOKEN},
    )
