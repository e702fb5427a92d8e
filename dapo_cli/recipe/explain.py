"""What `dapo check RECIPE` shows: every setting with where it came from, and the numbers that follow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo_cli.recipe.derived import Derived, derived_numbers
from dapo_cli.recipe.keys import leaf_values
from dapo_cli.recipe.loading import LoadedRecipe
from dapo_cli.recipe.origins import Origin, shown

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def check_json(loaded: LoadedRecipe) -> dict[str, Any]:
    """The content of `dapo check` as plain values: recipe, origin of each key, derived numbers, notes."""
    return {
        "name": loaded.name,
        "path": shown(loaded.path),
        "packaged": loaded.packaged,
        "recipe": loaded.recipe.model_dump(mode="json"),
        "origins": {key: str(origin) for key, origin in loaded.origins.items()},
        "derived": {number.name: number.value for number in derived_numbers(loaded.recipe)},
        "notes": list(loaded.notes),
    }


def render_check(loaded: LoadedRecipe) -> Group:
    """The content of `dapo check` for a terminal: one table of settings and one of derived numbers."""
    from rich.console import Group
    from rich.text import Text

    notes = [Text(f"note: {note}", style="yellow") for note in loaded.notes]
    return Group(*notes, _settings(loaded), Text(""), _numbers(derived_numbers(loaded.recipe)))


def _settings(loaded: LoadedRecipe) -> Table:
    from rich.text import Text

    table = _table(f"recipe {loaded.name} ({shown(loaded.path)})", ("setting", "value", "from"))
    section = ""
    for key, value in leaf_values(loaded.recipe).items():
        name, _, rest = key.partition(".")
        if name != section:
            table.add_section()
            table.add_row(Text(name, style="bold"), "", "")
            section = name
        origin = loaded.origins[key]
        style = "dim" if origin.kind == "default" else "bold" if origin.kind == "set" else ""
        table.add_row(
            Text(f"  {rest}", style=style), Text(readable(value), style=style), Text(_short(origin), style=style)
        )
    return table


def _numbers(numbers: list[Derived]) -> Table:
    from rich.text import Text

    table = _table("what follows", ("number", "value", "how"))
    for number in numbers:
        table.add_row(Text(number.name), Text(f"{number.value:,}"), Text(number.explanation, style="dim"))
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("setting", "from"))
    return table


def _short(origin: Origin) -> str:
    """The origin without the file's folder, which the title shows; an installed recipe's would fill the line."""
    return f"{Path(origin.source).name}:{origin.line}" if origin.kind == "file" else str(origin)


def readable(value: Any) -> str:
    """A value about as it would be written in a recipe, on one line.

    >>> readable(180224), readable(1e-6), readable(None), readable(("\\n",))
    ('180224', '1e-06', 'null', "['\\\\n']")
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return repr([item if isinstance(item, str | int) else item.model_dump() for item in value])
    text = str(value)
    return text if text and text == text.strip() and text.isprintable() else repr(text)
