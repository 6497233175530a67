"""The table that completion reads: what is in the repository is what the commands are."""

from clearhead.cli.completion import TABLE
from release.completion_table import as_json, make_table


def test_the_table_is_that_of_the_commands():
    assert TABLE.read_text(encoding="utf-8") == as_json(make_table()), (
        "an option has changed: python -m release.completion_table"
    )
