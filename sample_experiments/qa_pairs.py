"""Real questions and answers for the samples, from the Python package chatterbot-corpus (BSD)."""

import random
import sys
from pathlib import Path


def qa_pairs() -> list[tuple[str, str]]:
    """The different first question-and-answer pairs of the English corpus, in a fixed order.

    The corpus repeats some dialogues a hundred times over; left in, they would stand in both halves of any
    split.
    """
    try:
        import yaml
        from chatterbot_corpus.corpus import DATA_DIRECTORY
    except ImportError as error:
        print(f"the sample data need the package {error.name}: pip install 'rftui[samples]'", file=sys.stderr)
        sys.exit(2)
    pairs = {}
    for file in sorted(Path(DATA_DIRECTORY, "english").glob("*.yml")):
        for dialogue in yaml.safe_load(file.read_text(encoding="utf-8"))["conversations"]:
            pairs[dialogue[0].strip(), dialogue[1].strip()] = None
    return list(pairs)


def split_by_question(pairs: list[tuple[str, str]], held_out: int, seed: int) -> tuple[list, list]:
    """Shuffle and split `pairs` in two: the second, of `held_out` pairs or more, has questions of its own."""
    questions = sorted({question for question, _ in pairs})
    random.Random(seed).shuffle(questions)
    answers = {question: [pair for pair in pairs if pair[0] == question] for question in questions}
    evaluation = []
    while len(evaluation) < held_out:
        evaluation += answers.pop(questions.pop())
    return [pair for question in questions for pair in answers[question]], evaluation
