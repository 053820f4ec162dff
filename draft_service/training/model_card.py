"""The README of a trained draft, made of its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draft_service.training.report import NUM_DRAFT_TOKENS, TEMPERATURES


def model_card(report: Mapping[str, Any]) -> str:
    """Markdown for people who find the directory.

    Args:
        report: content of report.json.
    """
    training, steps = report["training"], report["step_seconds"]
    last = training["history"][-1] if training["history"] else {"agreement": float("nan"), "overlap": float("nan")}
    layers = ", ".join(map(str, training["layers"]))
    lines = [
        f"# Draft model for {training['target']}",
        "",
        "Proposes tokens for speculative decoding with this target and no other. Serve it with",
        "`specdec draft --drafter model --model THIS_DIRECTORY`; what it shares with the target is read from the "
        "target's own files.",
        "",
        "## Training",
        "",
        f"- Made of the target's layers {layers}{_reading(training)};"
        f" scores {training['draft_vocab_size']:,} tokens, which have"
        f" {100 * training['vocab_mass']:.1f} % of the target's probability.",
        f"- Data: {training['tokens_written']:,} tokens that the target wrote itself (invented user turns and answers"
        + (f", and answers to {training['num_prompts']:,} prompts given)" if training["num_prompts"] else ")")
        + f"; {training['tokens_visited']:,} visited, repetitions counted.",
        *_shared_text(training),
        f"- {training['hours']:.2f} hours in all, seed {training['seed']}, on {report['machine']['device']} with "
        f"{report['machine']['threads']} threads; learning rate {training['learning_rate']:g}.",
        f"- On held-out text: most probable token the same at {100 * last['agreement']:.1f} % of positions; "
        f"laws overlap by {100 * last['overlap']:.1f} %.",
        f"- Trained by `{_command(training)}`.",
        f"- Size {report['size_bytes'] / 1e6:.1f} MB (float16, without what is the target's).",
        "",
        "## Measured",
        "",
        f"One step takes {1e3 * steps['draft']['1']:.1f} ms, one step of the target "
        f"{1e3 * steps['target']['1']:.1f} ms: a ratio of {report['step_ratio']:.3f}.",
        "The table gives the mean acceptance length by the coupled rule (the recovered or bonus token counts), and in",
        "brackets the speed relative to the target alone, with its fastest kernels, that step times predict with no",
        "network.",
        "",
    ]
    heads = [f"T {temperature:g}, K {count}" for temperature in TEMPERATURES for count in NUM_DRAFT_TOKENS]
    lines += [f"| category | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    cells: dict[str, dict[tuple[float, int], str]] = {}
    for entry in report["acceptance"]:
        cells.setdefault(entry["category"], {})[entry["temperature"], entry["num_draft_tokens"]] = (
            f"{entry['mean_acceptance_length']:.2f} ({entry['predicted_speedup']:.2f})"
        )
    for category, of_category in cells.items():
        row = [of_category[temperature, count] for temperature in TEMPERATURES for count in NUM_DRAFT_TOKENS]
        lines.append(f"| {category} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _shared_text(training: Mapping[str, Any]) -> list[str]:
    """Where the data comes from, if another run wrote it."""
    if training["text_hours"] is None:
        return []
    seed, hours = training["text_seed"], training["text_hours"]
    return [f"- The data is that of another run (seed {seed}), whose writing took {hours:.2f} hours more."]


def _reading(training: Mapping[str, Any]) -> str:
    """What it reads besides tokens."""
    states = training.get("text_features", ())
    if not states or training["settings"].get("upper_layers") == 0:
        return ""
    return f", reading the target's hidden state behind layer {states[-1]} (counted from 1)"


def _command(training: Mapping[str, Any]) -> str:
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in training["settings"].items() if value not in ("", None)
    ]
    return " ".join(["specdec train-draft", f"--target={training['target']}", "--out=DIR", *flags])
