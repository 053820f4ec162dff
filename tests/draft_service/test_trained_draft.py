"""Loading a trained draft: with its own target only, and with no probability outside its vocabulary."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, PreTrainedModel

from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.drafters.making import make_drafter
from draft_service.feature_runner import FeatureRunner, FeatureWork, make_runner
from draft_service.settings import DraftSettings
from draft_service.state_guess import replace_states, state_guess
from draft_service.trained_draft import (
    is_trained_draft,
    load_trained_draft,
)
from specdec.kernels.few_rows import packed_dtype
from specdec.models.errors import ModelError
from specdec.models.loading import load_model
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.tokenizer_files import vocab_size
from tests.draft_service.conftest import Trained
from tests.draft_service.training.running import (
    DRAFT_VOCAB_SIZE,
    lively_student,
    save_draft,
    save_target,
    save_untrained_draft,
    tied_llama,
)
from tests.specdec.models.saved_models import edit_json, save_tiny_model
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, plain_logits, plain_states, tiny_model
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama, tiny_tokenizer_files


@pytest.fixture
def draft(trained: Trained, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(trained.out, tmp_path / "draft", ignore=shutil.ignore_patterns("work"))
    return tmp_path / "draft"


def load(directory: Path, target: Path | str = "") -> None:
    load_trained_draft(str(directory), target=str(target), device="cpu")


def test_its_logits_span_the_vocabulary_and_exclude_what_it_does_not_score(trained: Trained) -> None:
    loaded = load_trained_draft(str(trained.out), device="cpu")
    runner = ModelRunner(loaded.model, loaded.info.vocab_size)
    logits = runner.forward([Work(SequenceCache(), [3, 4, 5], 2), Work(SequenceCache(), [9], 1)])
    assert [rows.shape for rows in logits] == [(2, TINY_VOCAB_SIZE), (1, TINY_VOCAB_SIZE)]
    draft_vocab = load_file(trained.out / "model.safetensors")["draft_vocab"].long()
    assert len(draft_vocab) == DRAFT_VOCAB_SIZE
    for rows in logits:
        finite = rows.isfinite()
        assert bool(finite[:, draft_vocab].all())
        assert int(finite.sum()) == len(rows) * DRAFT_VOCAB_SIZE
        assert bool((rows[~finite] == -torch.inf).all())


def test_what_it_says_of_itself(either: Trained) -> None:
    loaded = load_trained_draft(str(either.out), device="cpu", max_context_length=100)
    target = load_model(str(either.target), device="cpu")
    if either.settings.upper_layers == 0:
        assert not loaded.info.feature_states
        assert loaded.info.hidden_size == loaded.info.max_feature_tokens == 0
    else:
        assert list(loaded.info.feature_states) == [1]
        assert loaded.info.hidden_size == 32
        # A state of 32 numbers of 2 bytes is 64 bytes, and 16 MiB are kept.
        assert loaded.info.max_feature_tokens == 2**18
    assert loaded.info.tokenizer_hash == target.info.tokenizer_hash
    assert loaded.info.vocab_size == target.info.vocab_size
    assert loaded.info.max_context_length == 100
    assert loaded.info.dtype == packed_dtype(loaded.model)
    assert loaded.info.dtype.startswith("int8/")
    assert load_trained_draft(str(either.out), device="cpu", dtype="float32").info.dtype == "float32"
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not loaded.model.training


def test_the_draft_service_makes_a_drafter_of_it(trained: Trained) -> None:
    drafter = make_drafter(DraftSettings(drafter="model", model=str(trained.out), device="cpu"))
    assert isinstance(drafter, CausalLMDrafter)
    assert drafter.info.model_id == str(trained.out)
    assert drafter.info.max_num_draft_tokens == 32


def test_the_file_holds_what_was_trained(trained: Trained) -> None:
    tensors = load_file(trained.out / "model.safetensors")
    of_guess = {f"state_guess.{each}" for each in ("scale", "known.weight", "known.bias", "down.weight")}
    assert tensors.keys() == of_guess | {"draft_vocab"}, "the layers are the target's own"
    assert {str(tensor.dtype) for name, tensor in tensors.items() if name != "draft_vocab"} == {"torch.float16"}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_saved_and_loaded_it_computes_the_same(tmp_path: Path, tied: bool) -> None:
    target = tied_llama() if tied else tiny_llama()
    save_tiny_model(tmp_path, target)
    saved = save_untrained_draft(tmp_path, target)
    assert_same_logits(saved, target)


@pytest.mark.parametrize("make", [tied_llama, tiny_llama], ids=["tied", "untied"])
def test_upper_layers_are_saved_and_loaded(tmp_path: Path, make: Callable[[], LlamaForCausalLM]) -> None:
    """On the target's own states they compute what the target does, on its draft vocabulary."""
    target = make()
    save_tiny_model(tmp_path, target)
    saved = save_untrained_draft(tmp_path, target, reads_states=True)
    loaded = load_trained_draft(str(saved), device="cpu", dtype="float32")
    guess = state_guess(loaded.model)
    assert guess is not None
    work = [5, 17, 3, 80, 41, 2, 66, 9]
    states = plain_states(target, work)[:, 0]
    known = torch.ones(8, dtype=torch.bool)
    runner = FeatureRunner(loaded.model, TINY_VOCAB_SIZE, guess)
    (found,) = runner.forward([FeatureWork(SequenceCache(), work, 8, states=states, is_known=known)])
    expected = plain_logits(target, work)
    scored = torch.arange(TINY_VOCAB_SIZE) % 3 == 0
    assert torch.allclose(found[:, scored], expected[:, scored], atol=0.02 * float(expected.std()) + 0.02)
    assert bool((found[:, ~scored] == -torch.inf).all())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_makes_a_draft(tmp_path: Path, name: str) -> None:
    target = tiny_model(name)
    target.save_pretrained(tmp_path)
    tiny_tokenizer_files(target.config.vocab_size).save(tmp_path)
    saved = save_untrained_draft(tmp_path, target)
    assert_same_logits(saved, target)


@pytest.mark.parametrize("num_trained", [0, 1])
@pytest.mark.parametrize("num_lower", [0, 1])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_lower_layers_and_trained_ones_are_put_in_their_places(
    tmp_path: Path, name: str, num_lower: int, num_trained: int
) -> None:
    """Run as it is served, on guesses alone, a draft computes what its parts do one after the other."""
    target = tiny_model(name, layers=4)
    target.save_pretrained(tmp_path)
    files = tiny_tokenizer_files(target.config.vocab_size)
    files.save(tmp_path)
    layers = (*range(num_lower), 2, 3)
    student = lively_student(target, (2, 3), torch.arange(target.config.vocab_size), num_trained_layers=num_trained)
    for parameter in student.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.05)
    saved = save_draft(tmp_path, target, student, layers, num_lower=num_lower)
    loaded = load_trained_draft(str(saved), device="cpu", dtype="float32")
    work = [5, 17, 3, 80]
    nothing = dict.fromkeys(range(4), torch.zeros(target.config.hidden_size))
    (found,) = make_runner(loaded).forward([FeatureWork(SequenceCache(), work, 4, before=nothing)])
    guess = state_guess(student)
    assert guess is not None
    with torch.no_grad():
        if num_lower:
            lower = plain_states(target, work)[:, num_lower - 1]
        else:
            lower = target.get_input_embeddings()(torch.tensor(work))
        states = guess(lower, torch.zeros_like(lower))
        handle = replace_states(student, 0, lambda _: states[None])
        student.set_attn_implementation("eager")
        expected = student(torch.tensor([work])).logits[0]
        handle.remove()
    # Trained tensors are stored as float16.
    torch.testing.assert_close(found, expected, atol=0.03 * float(expected.std()), rtol=0.02)


def assert_same_logits(directory: Path, target: PreTrainedModel) -> None:
    """Those of the target, within what float16 takes away, on the draft vocabulary."""
    loaded = load_trained_draft(str(directory), device="cpu", dtype="float32")
    size = loaded.info.vocab_size
    work = [5, 17, 3, 80, 41, 2, 66, 9]
    found = ModelRunner(loaded.model, size).forward([Work(SequenceCache(), work, 8)])[0]
    expected = ModelRunner(target, size).forward([Work(SequenceCache(), work, 8)])[0]
    scored = torch.arange(size) % 3 == 0
    assert torch.allclose(found[:, scored], expected[:, scored], atol=0.02 * float(expected.std()) + 0.02)
    assert bool((found[:, ~scored] == -torch.inf).all())


def test_a_target_with_another_tokenizer_is_refused_with_both_named(draft: Path, tmp_path: Path) -> None:
    other = save_target(tmp_path / "other")
    tiny_tokenizer_files(TINY_VOCAB_SIZE - 1).save(other)
    with pytest.raises(ModelError, match="tokenizer") as refused:
        load(draft, other)
    message = str(refused.value)
    origin = json.loads((draft / "draft.json").read_text())
    assert str(other) in message
    assert origin["target"] in message
    assert origin["tokenizer_hash"][:16] in message
    assert "--target-model" in message


def test_a_target_with_other_weights_is_refused_with_both_named(draft: Path, trained: Trained, tmp_path: Path) -> None:
    other = save_target(tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match="embeddings") as refused:
        load(draft, other)
    assert str(other) in str(refused.value)
    assert str(trained.target) in str(refused.value)


def test_the_target_may_have_moved(draft: Path, trained: Trained, tmp_path: Path) -> None:
    edit_json(draft / "draft.json", target=str(tmp_path / "old place"))
    with pytest.raises(ModelError, match="old place"):
        load(draft)
    load(draft, trained.target)
    settings = DraftSettings(drafter="model", model=str(draft), target_model=str(trained.target), device="cpu")
    assert make_drafter(settings).info.vocab_size == vocab_size(tiny_tokenizer_files())


def test_only_a_directory_with_the_note_is_a_trained_draft(draft: Path, trained: Trained) -> None:
    assert is_trained_draft(str(draft))
    assert not is_trained_draft(str(trained.target))
    assert not is_trained_draft("")
    assert not is_trained_draft("smollm2-135m-instruct")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": 3}', '{"format": 3, "layers": [0], "more": 2}'])
def test_a_damaged_note_is_refused(draft: Path, content: str) -> None:
    (draft / "draft.json").write_text(content)
    with pytest.raises(ModelError, match=r"draft.json cannot be read .* get an intact copy"):
        load(draft)


@pytest.mark.parametrize("number", [2, 4])
def test_another_format_is_refused(draft: Path, number: int) -> None:
    edit_json(draft / "draft.json", format=number)
    with pytest.raises(ModelError, match=f"has format {number} and this version reads 3; train the draft again"):
        load(draft)


def test_damaged_weights_are_refused(draft: Path) -> None:
    path = draft / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model.safetensors does not fit its config.json or its target"):
        load(draft)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("draft_vocab"),
        lambda tensors: tensors.pop("state_guess.down.weight"),
        lambda tensors: tensors.update(extra=torch.zeros(1)),
        lambda tensors: tensors["draft_vocab"].fill_(3),
        lambda tensors: tensors["draft_vocab"].add_(TINY_VOCAB_SIZE),
        lambda tensors: tensors["draft_vocab"].sub_(TINY_VOCAB_SIZE),
        lambda tensors: tensors.update({"state_guess.known.weight": torch.zeros((3, 64))}),
    ],
)
def test_tensors_that_do_not_fit_are_refused(draft: Path, change: object) -> None:
    path = draft / "model.safetensors"
    tensors = load_file(path)
    change(tensors)  # type: ignore[operator]
    save_file(tensors, path)
    with pytest.raises(ModelError, match="does not fit"):
        load(draft)


def test_a_draft_that_reads_tokens_lacks_none_of_its_own(trained_on_tokens: Trained, tmp_path: Path) -> None:
    """Though the target has a tensor of that name."""
    shutil.copytree(trained_on_tokens.out, tmp_path / "draft", ignore=shutil.ignore_patterns("work"))
    path = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelError, match="has all layers of its own"):
        load(tmp_path / "draft")


def test_a_head_that_does_not_fit_the_vocabulary_is_refused(trained_on_tokens: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained_on_tokens.out, tmp_path / "draft", ignore=shutil.ignore_patterns("work"))
    path = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "draft_vocab": tensors["draft_vocab"][:-1]}, path)
    with pytest.raises(ModelError, match="does not fit"):
        load(tmp_path / "draft")


def test_a_target_without_the_tensor_is_refused(draft: Path, trained: Trained, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained.target, other)
    save_file({"something.else": torch.zeros(1)}, other / "model.safetensors")
    with pytest.raises(ModelError, match=r"have no input embeddings"):
        load(draft, other)
    (other / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="cannot be read"):
        load(draft, other)
