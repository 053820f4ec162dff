"""Prompts of the end-to-end tests: twenty user turns of the kinds that people send.

SPECDEC_TEST_PROMPTS may name a file of benchmark prompts (JSON lines with question_id, category, turns) to take twenty
from instead, spread over its categories.
"""

import os
from pathlib import Path

from benchmarks.measuring.prompts import read_prompts, spread

_OWN_PROMPTS = (
    "Write a two-sentence review of a quiet café by the sea.",
    "Translate into French: The meeting starts at nine, please bring your notes.",
    "What is 17 times 24? Show the steps.",
    "Summarise in one sentence: Bees visit flowers to collect nectar. While they do so, pollen sticks to their legs and"
    " is carried to the next flower, which lets plants make seeds.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five fruits, one on each line.",
    "Repeat the following list exactly: red, green, blue, red, green, blue, red, green, blue.",
    "Explain to a child why the sky is blue.",
    "Who wrote Romeo and Juliet, and in which century?",
    "Give three tips for sleeping well.",
    "Continue the story: The lighthouse keeper had not seen a ship for three weeks when",
    "Turn this into a polite email: I will be late, do not wait for me.",
    "What is the difference between a list and a tuple in Python?",
    "A train travels 120 km in 1.5 hours. What is its average speed?",
    "Name the planets of the solar system in order from the sun.",
    "Write a haiku about winter rain.",
    "Classify the sentiment as positive or negative: The battery died after two days and nobody answered my calls.",
    'Fix the grammar: "He go to school every days and do not likes it."',
    "Write the JSON object for a person named Ada, aged 36, who lives in London.",
    "Count from one to fifteen in words.",
)

_file = os.environ.get("SPECDEC_TEST_PROMPTS")
PROMPTS = tuple(prompt.text for prompt in spread(read_prompts(Path(_file)), 20)) if _file else _OWN_PROMPTS
