"""A data card for readers, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from dapo_cli.dataset.data_card import Counts, DataCard, Overlap, PartCard

STAGES = {
    "rows_read": "read",
    "conflicting_rows_dropped": "dropped: conflicting answers",
    "overlapping_rows_dropped": "dropped: a benchmark asks the same",
    "too_long_rows_dropped": "dropped: prompt too long",
    "duplicates_dropped": "dropped: duplicates",
    "heldout": "held out (smallest content hashes)",
    "train": "train",
}


def stage_lines(counts: Counts) -> list[tuple[str, int]]:
    """The stages of the preparation in order, those that dropped nothing left out."""
    values = counts.model_dump()
    return [(name, values[key]) for key, name in STAGES.items() if values[key] or key in ("rows_read", "train")]


def as_markdown(card: DataCard) -> str:
    """Counts, what was dropped and why, hashes, answers, languages, lengths, findings, template."""
    sections = [
        f"# {card.name}\n",
        *(_part(part) for part in card.parts),
        _table("stage", "rows", stage_lines(card.counts)),
        f"{card.distinct_problems} distinct problems. duplicates: {card.duplicates} "
        f"({card.counts.duplicates_kept} kept); conflicts: {card.conflicts}. {card.counts.carried_a_template} rows "
        "carried a prompt template, which was taken off.\n",
        *(f"Note: {note}.\n" for note in card.notes),
        "## Answers\n\n" + _table("form", "distinct rows", [(k, n) for k, n in card.answers.items() if n]),
        _bullets("Ground truths that are not integers (kept as they are)", card.not_integers[:20], card.not_integers),
        "## Languages\n\n" + _table("script", "problems", list(card.languages.items())),
        _lengths(card),
        "## Overlap with benchmarks\n\n" + "".join(map(_overlap, card.overlaps)) if card.overlaps else "",
        *(_bullets(f"{finding.count} {finding.what}", finding.examples, ()) for finding in card.findings),
        f"## Prompt template\n\n```text\n{card.prompt_template}\n```\n",
        "## Files\n\n"
        + "".join(f"- {file.name}: {file.size_bytes} bytes, sha256 {file.sha256}\n" for file in card.files),
    ]
    return "\n".join(section for section in sections if section)


def _part(part: PartCard) -> str:
    columns = part.columns
    named = f" Columns: problem `{columns.problem_column}`, answer `{columns.answer_column}`." if columns else ""
    files = "".join(f"- {file.name}: {file.size_bytes} bytes, sha256 {file.sha256}\n" for file in part.files)
    counts = f"{part.counts.rows_read} rows, {part.counts.train} for training, {part.counts.heldout} held out."
    return (
        f"## {part.dataset.name}\n\n{part.dataset.description}\n\nLicense: {part.dataset.license}. "
        f"Source: {part.source}.{named} {counts}\n\n{files}"
    )


def _table(first: str, second: str, rows: Sequence[tuple[str, int]]) -> str:
    return f"| {first} | {second} |\n|---|---|\n" + "".join(f"| {name} | {count} |\n" for name, count in rows)


def _bullets(title: str, shown: Sequence[str], everything: Sequence[str]) -> str:
    if not shown:
        return ""
    more = f"- and {len(everything) - len(shown)} more in data_card.json\n" if len(everything) > len(shown) else ""
    return f"## {title}\n\n" + "".join(f"- {line}\n" for line in shown) + more


def _lengths(card: DataCard) -> str:
    lengths = card.lengths
    if not lengths.measured:
        return f"## Prompt lengths\n\nNot measured: {lengths.tokenizer}\n"
    table = _table("tokens", "problems", list(lengths.histogram.items()))
    return (
        f"## Prompt lengths\n\nWith the tokenizer of {lengths.tokenizer}: the longest has {lengths.longest} tokens; "
        f"{lengths.longer} problems are over the limit of {lengths.limit}.\n\n{table}"
    )


def _overlap(overlap: Overlap) -> str:
    if not overlap.checked:
        return f"- {overlap.benchmark}: not compared: {overlap.reason}\n"
    shown = "".join(f"  - {example}\n" for example in overlap.examples)
    return f"- {overlap.benchmark} ({overlap.reason}): {overlap.asked} of its problems\n{shown}"
