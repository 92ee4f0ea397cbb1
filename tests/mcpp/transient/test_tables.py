"""Tables in Markdown and CSV count as records."""

import csv
from collections.abc import Iterable
from typing import Any

import pytest

from mcpp.transient import mark_by_rule, read_mark, summarize
from mcpp.transient.tables import read_table
from tests.mcpp.prompts.logs import text_result

MARKDOWN = "| id | name |\n|---|:--:|\n" + "".join(f"| {n} | n{n} |\n" for n in range(72, 80))
CSV = "id,name\n" + "".join(f'{n},"n, {n}"\n' for n in range(72, 80))


@pytest.mark.rule("T-23")
@pytest.mark.parametrize(
    "text", [MARKDOWN, CSV, CSV.replace("\n", "\r\n"), f"# Found\n\n{MARKDOWN}\nEnd."]
)
def test_a_table_is_summarized_like_records(text: str) -> None:
    assert summarize(text_result(text), noun="activity") == "8 activity records (IDs: 72, 73, 74…)"
    assert read_mark(mark_by_rule(text_result(text))).transient


@pytest.mark.rule("T-23")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Dear all, hello\nthis is, prose\nwith, commas, more",
        "one line, only",
        "a,b\n1,2",
        "1,2\n3,4\n5,6",
        "a,a\n1,2\n3,4",
        'a,b\n"1,2\n3,4\n',
        'a,b\n1,"2\n' + "3\n" * 100 + '4"\n5,6\n7,8',
        "| a | b |\nno delimiter | here",
        "a\n---\nb",
        "| a |\n|---|\n| 1 |",
        "| a | b |\n|---|---|\n",
        "Roses are red, violets blue\nSugar is sweet, so are you\nSnow is white, coal is black",
        "Dear John, hello\nI saw 1 today, it was fine\nI saw 2 today, it was good",
        "Alice,1985\nBob,1990\nCarol,1970",
        "2021,country\n1,France\n2,Chile",
        ",country\nx,France\ny,Chile",
        ",2021\n0,France\n1,Chile",
    ],
)
def test_other_texts_are_no_tables(text: str) -> None:
    assert read_table(text) is None


@pytest.mark.rule("T-23")
@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("country,2021,2022", "France,1.5,2"),
        ("country;2021-Q1;2021-Q2", "France;19.9;2"),
        ("id, name", "7, Ann Lee"),
        ("name, since", "Ann Lee, 2020-01-02"),
        ("first, second", "x1, a b"),
    ],
)
def test_years_are_names_and_spaces_may_follow_commas(header: str, row: str) -> None:
    rows = read_table("\n".join([header, *[row] * 3]))
    assert rows is not None
    assert [list(one.values()) for one in rows] == [row.replace(";", ",").split(",")] * 3


@pytest.mark.rule("T-23")
def test_a_first_column_of_numbers_needs_no_name() -> None:
    table = ",id,2021\n" + "".join(f"{n},{72 + n},x\n" for n in range(8))
    assert summarize(text_result(table)) == "8 records (IDs: 72, 73, 74…)"


@pytest.mark.rule("T-23")
@pytest.mark.parametrize("before", ["\ufeff", "\n", " \r\n\ufeff "])
@pytest.mark.parametrize("text", [MARKDOWN, CSV, '[{"id": 1}, {"id": 2}]'])
def test_a_byte_order_mark_and_spaces_before_records_do_not_matter(text: str, before: str) -> None:
    assert summarize(text_result(before + text)) == summarize(text_result(text))
    assert "IDs" in summarize(text_result(before + text))


@pytest.mark.rule("T-23")
def test_a_quoted_field_may_have_several_lines() -> None:
    table = '_id,share %\n1,"two\n\nlines, ""quoted"""\n2,5" disk\n'
    expected = [
        {"_id": "1", "share %": 'two\n\nlines, "quoted"'},
        {"_id": "2", "share %": '5" disk'},
    ]
    assert read_table(table) == expected
    assert read_table(table.replace("\n", "\r\n")) == expected


@pytest.mark.rule("T-23")
def test_cells_keep_escaped_bars_and_quoted_delimiters() -> None:
    assert read_table("| a | b |\n|-|-|\n| x \\| y | z |") == [{"a": "x \\| y", "b": "z"}]
    assert read_table('a;b\n"1;""2""";3\n4;5') == [{"a": '1;"2"', "b": "3"}, {"a": "4", "b": "5"}]


@pytest.mark.rule("T-23")
def test_a_row_of_many_lines_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real, chars = csv.reader, 0

    def counting(lines: Iterable[str], **options: Any) -> Any:
        def counted() -> Iterable[str]:
            nonlocal chars
            for line in lines:
                chars += len(line)
                yield line

        return real(counted(), **options)

    monkeypatch.setattr(csv, "reader", counting)
    field = "x\n" * 63
    text = "a,b\n" + f'1,"{field}"\n' * 100
    assert read_table(text) == [{"a": "1", "b": field}] * 100
    assert chars == len(text)
    assert read_mark(mark_by_rule(text_result(text))).transient
    assert chars == 2 * len(text)


@pytest.mark.rule("T-23")
def test_a_delimiter_line_with_many_spaces_takes_no_time() -> None:
    line = "-|-" + " " * 1_000_000  # hours, if each way to divide the spaces were tried
    assert read_table(f"a|b\n{line}x\n1|2") is None
    assert read_table(f"a|b\n{line}|\n1|2") == [{"a": "1", "b": "2"}]
