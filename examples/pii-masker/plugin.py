"""pii-masker: puts a mask in the place of e-mail addresses, card numbers and phone numbers.

A row whose text ends in what could be the beginning of one waits until the rows behind it say what it is.
"""

import json
import re

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.plugin import BadSetting, ConfigureError_Setting
from wit_world.imports import log, metrics
from wit_world.imports.types import (
    Action_Hold,
    Action_Release,
    Action_ReleaseAndHold,
    Action_ReleaseAs,
    Calls,
    Columns,
    Description,
    FinishKind,
    IdShape,
    Replacement,
    Verdict,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "mask": {"type": "string", "default": "[masked]", "description": "What stands in the place of each."},
        "mask_id": {
            "type": "integer",
            "minimum": 0,
            "maximum": 2**31 - 1,
            "default": 0,
            "description": "The token id in the place of each id of a row with a mask.",
        },
        "hold_ms": {
            "type": "integer",
            "minimum": 1,
            "maximum": 60_000,
            "default": 1000,
            "description": "A row waits at most so long; then it goes on as it came. The operator's limits.hold bounds it.",
        },
        "hold_words": {
            "type": "boolean",
            "default": True,
            "description": "A row that ends in a plain word waits, too: an @ may come.",
        },
    },
    "additionalProperties": False,
}

# What stood before an @ may have gone on already.
EMAIL = re.compile(r"[A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
NUMBER = re.compile(r"(?<![\w.])(?:\+|\+?\()?\d(?:[ ().-]{0,2}\d)+")
PHONE_OF_10 = re.compile(r"\(?\d{3}\)?[ .-]{1,2}\d{3}[ .-]\d{4}")

# How each may begin at the end of a text. Longer ones are none.
ADDRESS = r"[A-Za-z0-9._%+-]{0,64}@[A-Za-z0-9.-]{0,190}\Z"
WORD = r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}\Z"
DIGITS = r"(?<![\w.])(?:\+|\+?\(|(?:\+|\+?\()?\d[\d ().-]{0,30})\Z"
BEGINNING = {True: re.compile(f"{ADDRESS}|{WORD}|{DIGITS}"), False: re.compile(f"{ADDRESS}|{DIGITS}")}
BEGINNING_CHARS = 300

# What is kept from call to call is kept here: each call has a `Plugin` of its own.
settings = {name: of["default"] for name, of in SCHEMA["properties"].items()}
# Of each open request the rows that wait: the text and the number of ids of each.
waiting = {}
told_no_text = False


def is_card(digits):
    """By Luhn's check digit."""
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return 13 <= len(digits) <= 19 and sum(value - 9 * (value > 9) for value in doubled) % 10 == 0


def is_phone(number, digits):
    if number[0] == "+":
        return 8 <= len(digits) <= 15
    # Dates and lists of figures look alike: so it has an area code, in brackets or with a 0.
    has_code = number[0] in "(0" and number != digits and 9 <= len(digits) <= 15
    return has_code or PHONE_OF_10.fullmatch(number) is not None


def masked(text):
    """The text with masks, and how many there are."""
    found = 0

    def number(match):
        nonlocal found
        digits = re.sub(r"\D", "", match[0])
        if not is_card(digits) and not is_phone(match[0], digits):
            return match[0]
        found += 1
        return settings["mask"]

    text, emails = EMAIL.subn(lambda _: settings["mask"], text)
    return NUMBER.sub(number, text), emails + found


def wrong(name, value):
    """What is wrong with a setting."""
    if name not in settings:
        return "is not known"
    of = SCHEMA["properties"][name]
    if type(value) is not {"string": str, "integer": int, "boolean": bool}[of["type"]]:
        return f"is {json.dumps(value)}, must be of type {of['type']}"
    if "minimum" in of and not of["minimum"] <= value <= of["maximum"]:
        return f"is {value}, must be from {of['minimum']} to {of['maximum']}"
    return None


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="pii-masker",
            version="0.1.0",
            settings_schema=json.dumps(SCHEMA),
            columns=Columns.OUTPUT_IDS | Columns.FINISHED | Columns.TEXTS | Columns.WAITING,
            writes=IdShape.DELTA,
            wants=Calls(0),
        )

    def configure(self, text):
        for name, value in json.loads(text).items():
            message = wrong(name, value)
            if message:
                raise Err(ConfigureError_Setting(BadSetting(f"/{name}", message)))
            settings[name] = value

    def open(self, requests):
        for request in requests:
            waiting[request.request] = []

    def process(self, batch):
        global told_no_text
        if not batch.texts:
            if not told_no_text:
                log.log(log.Level.WARN, None, "rows have no text here: this is for a stream behind the detokenizer")
            told_no_text = True
            return []
        verdicts, start = [], 0
        for row, request in enumerate(batch.requests):
            end = batch.output_ends[row]
            action = self.judge(
                waiting.setdefault(request, []),
                batch.waiting[row],
                batch.texts[row],
                end - start,
                batch.finished[row] != FinishKind.RUNNING,
            )
            if action:
                verdicts.append(Verdict(row, action))
            start = end
        return verdicts

    def judge(self, rows, still, text, ids, is_last):
        # The others have gone on: their time was over.
        del rows[: len(rows) - still]
        before = sum(len(text) for text, _ in rows)
        rows.append((text, ids))
        text = "".join(text for text, _ in rows)
        beginning = None
        if not is_last:
            beginning = BEGINNING[settings["hold_words"]].search(text, max(0, len(text) - BEGINNING_CHARS))
        mask, found = masked(text)
        if beginning and before and beginning.start() >= before and not found:
            # Of what came before all is known.
            del rows[:-1]
            return Action_ReleaseAndHold(settings["hold_ms"])
        if beginning:
            return Action_Hold(settings["hold_ms"])
        ids, waited = sum(ids for _, ids in rows), len(rows) > 1
        rows.clear()
        if found:
            metrics.counter_add("masked", found)
            return Action_ReleaseAs(Replacement([settings["mask_id"]] * ids, mask))
        return Action_Release() if waited else None

    def close(self, requests):
        for request in requests:
            waiting.pop(request, None)

    # Not asked for.
    def changed(self, requests):
        pass

    def pressure(self):
        pass

    def export_state(self):
        return b""

    def import_state(self, version, state):
        pass
