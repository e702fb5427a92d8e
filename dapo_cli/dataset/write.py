"""The second reading of the rows: those that are kept go to train.parquet and heldout.parquet, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.dataset.prompt_template import TemplateStripper
from dapo_cli.dataset.rows import problem_text
from dapo_cli.dataset.selection import KEPT, Selection
from dapo_cli.dataset.settings import Settings
from dapo_cli.dataset.sources import Table
from dapo_cli.dataset.survey import Survey

TRAIN, HELDOUT = "train.parquet", "heldout.parquet"
ROWS_PER_GROUP = 65536

Rows = npt.NDArray[np.intp]


def write_rows(folder: Path, settings: Settings, tables: Sequence[Table], survey: Survey, selection: Selection) -> None:
    """Write both files, rows in the order of the sources."""
    with ExitStack() as held:
        train, heldout = (held.enter_context(_Writer(folder / name)) for name in (TRAIN, HELDOUT))
        for texts, rows in _kept(settings, tables, survey, selection):
            is_heldout = selection.row_heldout[rows]
            for file, split, wanted in ((train, "train", ~is_heldout), (heldout, "heldout", is_heldout)):
                chosen = np.flatnonzero(wanted)
                values = _Values([texts[index] for index in chosen], rows[chosen], split, file.written)
                file.add(values.columns(settings, survey, selection))


def _kept(
    settings: Settings, tables: Sequence[Table], survey: Survey, selection: Selection
) -> Iterator[tuple[list[str], Rows]]:
    """Problems of the kept rows and the numbers of these rows, [batch]."""
    strip = TemplateStripper(settings.prompt_template).strip
    first = 0
    for table, count in zip(tables, survey.table_rows, strict=True):
        wanted = selection.fate[first : first + count] == KEPT
        rows = first + np.flatnonzero(wanted)
        done = 0
        for batch in table.batches(settings.parts[table.part], wanted):
            texts = [strip(problem_text(batch.place, "problem", cell))[0] for cell in batch.problems]
            yield texts, rows[done : done + len(texts)]
            done += len(texts)
        first += count


def _schema() -> Any:
    """The columns that verl reads, and in extra_info what this toolkit needs."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    about = {"index": number, "problem": text, "problem_id": text, "split": text, "dataset": text, "source_row": number}
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"ground_truth": text, "style": text}),
            "extra_info": pa.struct(about),
        }
    )


class _Values:
    """Some rows of one split: problems and row numbers, [rows], and the index of the first in its file."""

    def __init__(self, texts: Sequence[str], rows: Rows, split: str, first_index: int) -> None:
        self.texts, self.rows, self.split, self.first_index = texts, rows, split, first_index

    def columns(self, settings: Settings, survey: Survey, selection: Selection) -> Any:
        """The rows as a table of `_schema`."""
        import pyarrow as pa

        schema, count = _schema(), len(self.texts)
        distinct = [survey.distinct[kind] for kind in survey.row_kinds()[self.rows]]
        parts = [settings.parts[part] for part in selection.part_of_row[self.rows]]
        template = settings.prompt_template
        contents = [template.replace("{problem}", text) for text in self.texts]
        messages = _struct(schema.field("prompt").type.value_type, [["user"] * count, contents])
        about = [
            np.arange(self.first_index, self.first_index + count),
            self.texts,
            [survey.problems[row.problem].id for row in distinct],
            [self.split] * count,
            [part.name for part in parts],
            self.rows,
        ]
        columns = [
            pa.array([part.card.data_source for part in parts], pa.string()),
            pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), messages),
            pa.array(["MATH"] * count, pa.string()),
            _struct(schema.field("reward_model").type, [[row.answer for row in distinct], ["rule"] * count]),
            _struct(schema.field("extra_info").type, about),
        ]
        return pa.Table.from_arrays(columns, schema=schema)


def _struct(kind: Any, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    fields = [kind.field(index) for index in range(kind.num_fields)]
    arrays = [pa.array(column, field.type) for column, field in zip(values, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


class _Writer:
    """A parquet file that grows by row groups, the same ones however the rows came in batches."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._file = pyarrow.parquet.ParquetWriter(path, _schema())
        self._waiting = _schema().empty_table()
        self.written = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.write_table(self._waiting)
        self._file.close()

    def add(self, table: Any) -> None:
        """Append rows; they reach the disk a row group at a time."""
        import pyarrow as pa

        self.written += len(table)
        self._waiting = pa.concat_tables([self._waiting, table])
        if len(self._waiting) >= ROWS_PER_GROUP:
            self._file.write_table(self._waiting.slice(0, ROWS_PER_GROUP), row_group_size=ROWS_PER_GROUP)
            self._waiting = self._waiting.slice(ROWS_PER_GROUP)
