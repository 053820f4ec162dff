"""A guess of the target's state: what it is made of, and that sizes do not matter to it."""

from __future__ import annotations

import pytest
import torch

from draft_service.state_guess import StateGuess, guess_width, replace_states, state_guess, unit_scale
from tests.tiny_models import tiny_llama, tiny_llama_config

SIZE, WIDTH = 8, 5


def made() -> StateGuess:
    guess = StateGuess(SIZE, WIDTH)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in guess.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        guess.scale.copy_(torch.arange(1, SIZE + 1))
    return guess


def numbers(seed: int) -> torch.Tensor:
    return torch.randn((2, 3, SIZE), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_it_is_a_linear_part_and_a_gated_one() -> None:
    guess, embeddings, before = made(), numbers(1), numbers(2)
    found = guess(embeddings, before)
    assert found.shape == (2, 3, SIZE)
    token, state = (each / each.square().mean(-1, keepdim=True).sqrt() for each in (embeddings, before))
    both = torch.cat([token, state], -1)
    products = both @ guess.known.weight.T + guess.known.bias
    linear, gate, up = products[..., :SIZE], products[..., SIZE : SIZE + WIDTH], products[..., SIZE + WIDTH :]
    corrected = (gate * torch.sigmoid(gate) * up) @ guess.down.weight.T
    sizes = torch.arange(1, SIZE + 1)
    torch.testing.assert_close(found, sizes * (linear + corrected), atol=1e-3, rtol=1e-4)


@torch.no_grad()
def test_only_directions_count_and_nothing_stands_before_a_text() -> None:
    guess, embeddings, before = made(), numbers(1), numbers(2)
    expected = guess(embeddings, before)
    torch.testing.assert_close(guess(embeddings * 50, before * 3e4), expected, atol=1e-3, rtol=1e-3)
    blank = guess(embeddings, torch.zeros_like(before))
    assert bool(blank.isfinite().all())
    assert float((blank - expected).abs().max()) > 1.0


def test_zeros_stay_and_half_precision_is_kept() -> None:
    assert not unit_scale(torch.zeros(3)).any()
    large = torch.full((4,), 6e4, dtype=torch.float16)
    assert torch.allclose(unit_scale(large), torch.ones(4, dtype=torch.float16), atol=2e-3)
    assert unit_scale(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_model_without_one_reads_tokens_alone() -> None:
    assert state_guess(tiny_llama()) is None
    model = tiny_llama()
    model.add_module("state_guess", made())
    assert isinstance(state_guess(model), StateGuess)


@pytest.mark.parametrize(("hidden_size", "expected"), [(576, 1536), (32, 128), (24, 64), (4096, 10944)])
def test_its_width_suits_processors(hidden_size: int, expected: int) -> None:
    config = tiny_llama_config()
    config.hidden_size = hidden_size
    assert guess_width(config) == expected


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_reads_other_states_until_it_does_not(layer: int) -> None:
    """Those below it are run as ever, and whatever they give is there to be used."""
    model, token_ids = tiny_llama(), torch.tensor([[5, 6, 7]])
    model.set_attn_implementation("eager")
    plain = model(token_ids, output_hidden_states=True)
    seen: list[torch.Tensor] = []

    def double(states: torch.Tensor) -> torch.Tensor:
        seen.append(states)
        return 2 * states

    handle = replace_states(model, layer, double)
    changed = model(token_ids).logits
    handle.remove()
    torch.testing.assert_close(seen[0], plain.hidden_states[layer])
    assert not torch.allclose(changed, plain.logits)
    torch.testing.assert_close(model(token_ids).logits, plain.logits)
    if not layer:
        expected = model(inputs_embeds=2 * model.get_input_embeddings()(token_ids)).logits
        torch.testing.assert_close(changed, expected)
