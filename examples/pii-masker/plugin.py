"""pii-masker: masks e-mail addresses, card numbers and phone numbers.

If a row's text ends in a possible beginning of one of them, the plugin holds the row until later rows show what it is.
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
        "mask": {"type": "string", "default": "[masked]", "description": "The text that replaces each of them."},
        "mask_id": {
            "type": "integer",
            "minimum": 0,
            "maximum": 2**31 - 1,
            "default": 0,
            "description": "The token id that replaces each id of a masked row.",
        },
        "hold_ms": {
            "type": "integer",
            "minimum": 1,
            "maximum": 60_000,
            "default": 1000,
            "description": "The longest hold of a row in ms; then it is released unchanged. limits.hold caps it.",
        },
        "hold_words": {
            "type": "boolean",
            "default": True,
            "description": "Also hold a row that ends in a plain word, because an @ may follow.",
        },
    },
    "additionalProperties": False,
}

# Rows before the @ may have been sent already.
EMAIL = re.compile(r"[A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
NUMBER = re.compile(r"(?<![\w.])(?:\+|\+?\()?\d(?:[ ().-]{0,2}\d)+")
PHONE_OF_10 = re.compile(r"\(?\d{3}\)?[ .-]{1,2}\d{3}[ .-]\d{4}")

# The beginnings of each kind at the end of a text. Longer texts are none of them.
ADDRESS = r"[A-Za-z0-9._%+-]{0,64}@[A-Za-z0-9.-]{0,190}\Z"
WORD = r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}\Z"
DIGITS = r"(?<![\w.])(?:\+|\+?\(|(?:\+|\+?\()?\d[\d ().-]{0,30})\Z"
BEGINNING = {True: re.compile(f"{ADDRESS}|{WORD}|{DIGITS}"), False: re.compile(f"{ADDRESS}|{DIGITS}")}
BEGINNING_CHARS = 300

# State that lasts from call to call must be global: each call has its own `Plugin`.
settings = {name: schema["default"] for name, schema in SCHEMA["properties"].items()}
# The held rows of each open request: the text and the number of ids of each row.
waiting = {}
logged_no_text = False


def is_card(digits):
    """Return whether Luhn's check digit is right."""
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return 13 <= len(digits) <= 19 and sum(value - 9 * (value > 9) for value in doubled) % 10 == 0


def is_phone(number, digits):
    if number[0] == "+":
        return 8 <= len(digits) <= 15
    # Dates and lists of numbers look alike. A phone number has an area code in brackets or with a 0.
    has_code = number[0] in "(0" and number != digits and 9 <= len(digits) <= 15
    return has_code or PHONE_OF_10.fullmatch(number) is not None


def masked(text):
    """Return the masked text and the number of masks."""
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


def setting_error(name, value):
    """Return a message about an invalid setting, or None."""
    if name not in settings:
        return "is unknown"
    schema = SCHEMA["properties"][name]
    if type(value) is not {"string": str, "integer": int, "boolean": bool}[schema["type"]]:
        return f"is {json.dumps(value)}, must be of type {schema['type']}"
    if "minimum" in schema and not schema["minimum"] <= value <= schema["maximum"]:
        return f"is {value}, must be from {schema['minimum']} to {schema['maximum']}"
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
            message = setting_error(name, value)
            if message:
                raise Err(ConfigureError_Setting(BadSetting(f"/{name}", message)))
            settings[name] = value

    def open(self, requests):
        for request in requests:
            waiting[request.request] = []

    def process(self, batch):
        global logged_no_text
        if not batch.texts:
            if not logged_no_text:
                log.log(log.Level.WARN, None, "rows have no text: this plugin needs a stream after the detokenizer")
            logged_no_text = True
            return []
        verdicts, start = [], 0
        for row, request in enumerate(batch.requests):
            end = batch.output_ends[row]
            action = self.action(
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

    def action(self, rows, held, text, ids, is_last):
        # The other rows were released: their hold timed out.
        del rows[: len(rows) - held]
        before = sum(len(text) for text, _ in rows)
        rows.append((text, ids))
        text = "".join(text for text, _ in rows)
        beginning = None
        if not is_last:
            beginning = BEGINNING[settings["hold_words"]].search(text, max(0, len(text) - BEGINNING_CHARS))
        mask, found = masked(text)
        if beginning and before and beginning.start() >= before and not found:
            # The earlier rows contain nothing to mask.
            del rows[:-1]
            return Action_ReleaseAndHold(settings["hold_ms"])
        if beginning:
            return Action_Hold(settings["hold_ms"])
        ids, has_held_rows = sum(ids for _, ids in rows), len(rows) > 1
        rows.clear()
        if found:
            metrics.counter_add("masked", [], found)
            return Action_ReleaseAs(Replacement([settings["mask_id"]] * ids, mask))
        return Action_Release() if has_held_rows else None

    def close(self, requests):
        for request in requests:
            waiting.pop(request, None)

    # The host makes these calls only if `wants` asks for them.
    def changed(self, requests):
        pass

    def pressure(self):
        pass

    def answered(self, answers):
        return []

    def due(self, time_ms, requests):
        return []

    def export_state(self):
        return b""

    def import_state(self, version, state):
        pass
