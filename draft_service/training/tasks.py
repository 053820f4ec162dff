"""What users ask about a text: turns that carry a text which the target wrote itself.

What is invented from nothing is short and names its subject; much of what is asked of a model brings the text along,
and there a draft must learn to find its words in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec.sampling.noise import Stream, noise_key

_ABOUT_A_TEXT = (
    "Summarize the following text.\n\n{answer}",
    "{answer}\n\nSummarize this in one or two sentences.",
    "What are the main points of this text?\n\n{answer}",
    "Read the text and answer the question.\n\nText: {answer}\n\nQuestion: {turn}",
    "{answer}\n\nBased on the text above: {turn}",
    "Rewrite this so that a child understands it:\n\n{answer}",
    "Continue this text:\n\n{answer}",
    "List the names, places and numbers in this text:\n\n{answer}",
    "Write a short question that this text answers, and nothing else.\n\n{answer}",
    "Write an arithmetic word problem about this: {turn}",
    "Answer in one sentence: {turn}",
    "Translate this into German: {turn}",
    "Translate this into French: {turn}",
    "Translate this into Spanish: {turn}",
)
_ABOUT_TWO_TEXTS = (
    "{answer}",
    "Solve this step by step:\n\n{answer}",
    "Answer this question: {answer}",
    "Translate this into English: {answer}",
    "Summarize the following text.\n\n{other}\n\n{answer}",
    "Use these texts to answer the question.\n\nText 1: {other}\n\nText 2: {answer}\n\nQuestion: {turn}",
    "Which of these two texts is better, and why?\n\n1. {other}\n\n2. {answer}",
)


def task_about(turn: str, answers: Sequence[str], key: int) -> str:
    """A user's turn about what was written before.

    Args:
        turn: what the user had asked first.
        answers: one or two; the last is what it is about.
        key: decides which of the tasks it is.
    """
    forms = _ABOUT_A_TEXT if len(answers) == 1 else _ABOUT_TWO_TEXTS
    form = forms[noise_key(key, len(answers), Stream.DRAFT) % len(forms)]
    return form.format(turn=turn, answer=answers[-1], other=answers[0])
