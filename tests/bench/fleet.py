#!/usr/bin/env python3
"""The cost of a fleet: bytes, requests and money per day, of journals, of NATS JetStream, and of the archive.

    python3 tests/bench/fleet.py
    python3 tests/bench/fleet.py --rows-each 5000 --wire vllm
    python3 tests/bench/fleet.py --price object_gb_month=0.015

fleet.json has the measured bytes: of the journal a row, a frame and a request; of JetStream a message beside the journal's own
bytes; of the archive a token, a request and a frame. tests/tests/fleet.rs compares the first with a journal. Prices are
parameters: put yours.
"""
import argparse
import json
import pathlib

DAY = 86_400
MONTH = 30
GB = 1e9

# Dollars. docs/src/operate/fleet.md names the sources.
PRICES = {
    "object_gb_month": 0.023,
    "object_put_1000": 0.005,
    "object_gb_in": 0.0,
    "disk_gb_month": 0.08,
    "zone_gb": 0.02,
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedulers", type=int, default=1000)
    parser.add_argument("--rows-each", type=float, default=2000, help="rows in a second, of one scheduler")
    parser.add_argument("--steps", type=float, default=50, help="frames in a second, of one scheduler")
    parser.add_argument("--tokens-a-row", type=float, default=1)
    parser.add_argument("--tokens-a-request", type=float, default=500)
    parser.add_argument("--wire", default="sglang-msgpack", choices=["sglang-msgpack", "sglang-pickle", "vllm"])
    parser.add_argument("--local-hours", type=float, default=24, help="journal.retain.age on each scheduler")
    parser.add_argument("--stream-hours", type=float, default=24, help="age limit of the JetStream stream")
    parser.add_argument("--replicas", type=int, default=3, help="of the JetStream stream, each in its own zone")
    parser.add_argument("--archive-days", type=float, default=90)
    parser.add_argument("--segment-bytes", type=float, default=256 * 2**20, help="journal.segment")
    parser.add_argument("--segment-seconds", type=float, default=600, help="the longest time of a segment")
    parser.add_argument("--price", action="append", default=[], metavar="NAME=DOLLARS", help=f"one of {', '.join(PRICES)}")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.prices = dict(PRICES)
    for price in args.price:
        name, _, dollars = price.partition("=")
        if name not in PRICES:
            parser.error(f"--price {name}: must be one of {', '.join(PRICES)}")
        args.prices[name] = float(dollars)
    return args


def journal_bytes(measured, rows, frames, requests):
    """Bytes of a journal with so many rows, frames and requests."""
    return rows * measured["row"] + frames * measured["frame"] + requests * measured["request"]


def fleet(args, measured):
    """Everything of one day, of the whole fleet unless the name says otherwise."""
    schedulers, prices = args.schedulers, args.prices
    rows = args.rows_each * DAY
    tokens = rows * args.tokens_a_row
    frames = min(args.steps, args.rows_each) * DAY
    requests = tokens / args.tokens_a_request
    journal = journal_bytes(measured["journal"][args.wire], rows, frames, requests)
    segments = max(journal / args.segment_bytes, DAY / args.segment_seconds)

    replication = measured["replication"]
    messages = max(journal / replication["message_bytes_max"], replication["messages_a_second"] * DAY)
    replicated = journal + messages * replication["message"]
    stored = replicated * args.replicas * args.stream_hours / 24
    # A publisher and the leader share a zone once in so many zones. The leader sends to each follower.
    crossed = replicated * ((args.replicas - 1) / args.replicas + (args.replicas - 1))

    archive = measured["archive"]
    archived = tokens * archive["token"] + requests * archive["request"] + frames * archive["frame"]
    # A file ends when it is large enough, with its hour, and after 64 segments. It is an object of each of two tables.
    objects = 2 * max(archived / archive["file_bytes"], 24, segments / 64)
    # Two for an object, or one for each part; one for the manifest of a segment.
    puts = max(2 * objects, archived / archive["part_bytes"]) + segments
    kept = archived * args.archive_days

    money = {
        "local_disks": schedulers * journal * args.local_hours / 24 / GB * prices["disk_gb_month"] / MONTH,
        "stream_disks": schedulers * stored / GB * prices["disk_gb_month"] / MONTH,
        "stream_traffic": schedulers * crossed / GB * prices["zone_gb"],
        "archive_storage": schedulers * kept / GB * prices["object_gb_month"] / MONTH,
        "archive_requests": schedulers * puts / 1000 * prices["object_put_1000"],
        "archive_traffic": schedulers * archived / GB * prices["object_gb_in"],
    }
    return {
        "rows": schedulers * rows,
        "tokens": schedulers * tokens,
        "requests": schedulers * requests,
        "journal": {
            "bytes": schedulers * journal,
            "bytes_a_token": journal / tokens,
            "disk_each": journal * args.local_hours / 24,
            "bytes_a_second_each": journal / DAY,
        },
        "replication": {
            "bytes": schedulers * replicated,
            "bytes_a_token": replicated / tokens,
            "bytes_a_second": schedulers * replicated / DAY,
            "messages": schedulers * messages,
            "stored": schedulers * stored,
        },
        "archive": {
            "bytes": schedulers * archived,
            "bytes_a_token": archived / tokens,
            "objects": schedulers * objects,
            "puts": schedulers * puts,
            "stored": schedulers * kept,
        },
        "dollars": {**money, "all": sum(money.values())},
        "dollars_a_million_tokens": sum(money.values()) / (schedulers * tokens / 1e6),
    }


def size(value):
    for unit, name in [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]:
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} B"


def count(value):
    for unit, name in [(1e12, "trillion"), (1e9, "billion"), (1e6, "million")]:
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:,.0f}"


def table(args, day):
    """Lines of a Markdown table."""
    journal, stream, archive, money = (day[name] for name in ["journal", "replication", "archive", "dollars"])
    dollars = {name: f"${value:,.0f}" for name, value in money.items()}
    rows = [
        ("tokens", count(day["tokens"]), "", ""),
        ("requests of clients", count(day["requests"]), "", ""),
        ("journal, written", size(journal["bytes"]), f"{journal['bytes_a_token']:.1f} B", ""),
        (f"journal, kept {args.local_hours:g} h", f"{size(journal['disk_each'])} each", "", dollars["local_disks"]),
        ("JetStream, published", size(stream["bytes"]), f"{stream['bytes_a_token']:.1f} B", ""),
        ("JetStream, messages", count(stream["messages"]), "", ""),
        (f"JetStream, {args.replicas} replicas kept {args.stream_hours:g} h", size(stream["stored"]), "", dollars["stream_disks"]),
        ("JetStream, traffic between zones", "", "", dollars["stream_traffic"]),
        ("archive, written", size(archive["bytes"]), f"{archive['bytes_a_token']:.2f} B", ""),
        ("archive, objects of two tables", count(archive["objects"]), "", ""),
        ("archive, PUT requests", count(archive["puts"]), "", dollars["archive_requests"]),
        (f"archive, kept {args.archive_days:g} days", size(archive["stored"]), "", dollars["archive_storage"]),
        ("all", "", f"${day['dollars_a_million_tokens']:.3g} a million", dollars["all"]),
    ]
    return ["| | a day | a token | dollars a day |", "|---|---|---|---|"] + [f"| {' | '.join(row)} |" for row in rows]


def main():
    args = arguments()
    measured = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
    day = fleet(args, measured)
    print(json.dumps(day, indent=2) if args.json else "\n".join(table(args, day)))


if __name__ == "__main__":
    main()
