import errno
import logging
from pathlib import Path

import gguf as gguf_library
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from specdec.models import gguf
from specdec.models.errors import ModelError
from specdec.models.progress import log_report
from specdec.tokenizer_files import TokenizerFiles, tokenizer_hash, vocab_size
from tests.specdec.models.saved_models import write_tiny_gguf
from tests.tiny_models import BOS_TOKEN, CHAT_TEMPLATE, EOS_TOKEN, tiny_llama, tiny_tokenizer_files

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_conversion_is_an_ordinary_model(tmp_path: Path) -> None:
    model = tiny_llama()
    directory = gguf.make_converted_directory(write_tiny_gguf(tmp_path / "tiny.gguf", model), log_report)
    tensors = load_file(directory / "model.safetensors")
    assert tensors.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensors[name], tensor), name
    loaded = LlamaForCausalLM.from_pretrained(directory)
    token_ids = torch.arange(20)[None]
    with torch.inference_mode():
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(loaded(token_ids).logits, model(token_ids).logits)
    assert not hasattr(loaded.config, "quantization_config")
    assert loaded.generation_config is not None
    assert loaded.generation_config.eos_token_id == 1


def test_tokenizer_is_the_one_of_the_file(tmp_path: Path) -> None:
    directory = gguf.make_converted_directory(write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama()), log_report)
    files = TokenizerFiles.load(directory)
    # transformers adds an <|endoftext|> that the file does not have.
    assert vocab_size(files) == 320
    assert tokenizer_hash(files) == tokenizer_hash(tiny_tokenizer_files())
    assert files.special_tokens == {"bos_token": BOS_TOKEN, "eos_token": EOS_TOKEN}
    assert files.chat_template == CHAT_TEMPLATE


def test_files_can_be_read_by_others(tmp_path: Path) -> None:
    directory = gguf.make_converted_directory(write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama()), log_report)
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o644}


def test_conversion_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama())
    assert gguf.converted_directory(path) is None
    directory = gguf.make_converted_directory(path, log_report)
    assert gguf.converted_directory(path) == directory
    monkeypatch.setattr(gguf, "convert", lambda *_: pytest.fail("converted again"))
    assert gguf.make_converted_directory(path, log_report) == directory


def test_another_content_is_another_entry(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama(seed=0))
    first = gguf.make_converted_directory(path, log_report)
    path.unlink()
    write_tiny_gguf(path, tiny_llama(seed=1))
    assert gguf.make_converted_directory(path, log_report) != first


def test_one_log_line_and_no_bars(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama())
    capfd.readouterr()
    with caplog.at_level(logging.INFO, "specdec"):
        gguf.make_converted_directory(path, log_report)
    assert caplog.messages == ["converting tiny.gguf"]
    assert capfd.readouterr() == ("", "")


def test_key_is_safe_as_a_file_name() -> None:
    assert gguf.entry_key("a b/c:é.Q4_K", "0123456789abcdef0123") == "a-b-c-.Q4_K-0123456789abcdef-v1".replace(
        "c-.", "c--."
    )


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf cannot be read \(No such file"):
        gguf.make_converted_directory(tmp_path / "nothing.gguf", log_report)


@pytest.mark.parametrize("content", [b"", b"not a GGUF file at all", b"GGUF" + bytes(100)])
def test_not_a_gguf_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.gguf cannot be converted .* give a GGUF file"):
        gguf.make_converted_directory(path, log_report)
    assert gguf.converted_directory(path) is None


def test_unknown_architecture(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "odd.gguf", tiny_llama(), architecture="rwkv6")
    with pytest.raises(ModelError, match=r"odd\.gguf cannot be converted .*rwkv6"):
        gguf.make_converted_directory(path, log_report)


def test_state_that_cannot_be_cut_back_is_refused_before_the_weights(tmp_path: Path) -> None:
    writer = gguf_library.GGUFWriter(str(tmp_path / "mamba.gguf"), "mamba")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_vocab_size(300)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="mamba keeps a running state"):
        gguf.make_converted_directory(tmp_path / "mamba.gguf", log_report)


def test_missing_tensor_is_not_made_up(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "partial.gguf", tiny_llama(), leave_out="blk.1.ffn_up.weight")
    with pytest.raises(ModelError, match=r"lacks 1 tensors .*mlp\.up_proj"):
        gguf.make_converted_directory(path, log_report)
    assert gguf.converted_directory(path) is None


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(self: LlamaForCausalLM, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise error

    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama())
    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", fail)
    with pytest.raises(ModelError, match="no room is left on disk"):
        gguf.make_converted_directory(path, log_report)
    assert gguf.converted_directory(path) is None


def test_room_for_the_result_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama())
    monkeypatch.setattr("specdec.models.cache.check_room", lambda directory, needed_bytes: asked.append(needed_bytes))
    gguf.make_converted_directory(path, log_report)
    assert asked == [path.stat().st_size, 4 * sum(each.numel() for each in tiny_llama().parameters())]


def test_transformers_that_misreads_tokenizers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_FIRST_GOOD_TRANSFORMERS", "1000.0")
    with pytest.raises(ModelError, match=r"1000\.0 or later"):
        gguf.convert(tmp_path / "any.gguf", tmp_path, log_report)
