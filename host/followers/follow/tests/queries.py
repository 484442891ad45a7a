"""Runs the queries of a page on the archive in the working directory, and prints their results as JSON.

The page has the same queries for DuckDB (sql) and Polars (python, the result in `result`), in the same order.
"""

import datetime
import json
import re
import sys

import duckdb
import polars

page = open(sys.argv[1], encoding="utf-8").read()


def blocks(heading, language):
    section = re.split(r"^### ", page.split(f"### {heading}\n")[1], flags=re.M)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)


def plain(value):
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).isoformat() if value.tzinfo else value.isoformat() + "+00:00"
    if isinstance(value, dict):
        return {key: plain(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inside) for inside in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else float(value)


def of_duckdb(query):
    relation = duckdb.sql(query)
    return {"columns": relation.columns, "rows": plain(relation.fetchall())}


def of_polars(code, names={}):
    exec(code, names)
    return {"columns": names["result"].columns, "rows": plain(names["result"].rows())}


print(json.dumps({
    "duckdb": [of_duckdb(query) for query in blocks("DuckDB", "sql")],
    "polars": [of_polars(code) for code in blocks("Polars", "python")],
    "versions": [duckdb.__version__, polars.__version__],
}))
