"""prompt-leak: ends a request whose answer repeats the beginning of its prompt, where the system's message stands."""

import json
from array import array

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.plugin import BadSetting, ConfigureError_Setting
from wit_world.imports import log, metrics, request
from wit_world.imports.types import (
    Action_Finish,
    Calls,
    Columns,
    Description,
    Ending,
    FinishReason_Stop,
    IdShape,
    Replacement,
    Verdict,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "run": {
            "type": "integer",
            "minimum": 4,
            "maximum": 256,
            "default": 16,
            "description": "So many tokens of the prompt in a row are a leak.",
        },
        "first": {
            "type": "integer",
            "minimum": 4,
            "maximum": 8192,
            "default": 512,
            "description": "Only this many tokens at the beginning of the prompt are secret.",
        },
    },
    "additionalProperties": False,
}

# State that lasts from call to call must be global: each call has its own `Plugin`.
settings = {name: schema["default"] for name, schema in SCHEMA["properties"].items()}
# The secret tokens, and the last tokens of the answer, of each open request whose prompt is known, 4 bytes each.
secrets = {}
answers = {}


def packed(ids):
    return array("I", ids).tobytes()


def stands_in(run, secret):
    """Return whether these tokens stand in the secret ones. A match inside of a token is none."""
    at = secret.find(run)
    while at >= 0 and at % 4 != 0:
        at = secret.find(run, at + 1)
    return at >= 0


def leak(secret, answer, new):
    """Return whether the answer, with these new tokens, has a run of the secret tokens."""
    run = 4 * settings["run"]
    answer += packed(new)
    ends = range(len(answer) - 4 * len(new) + 4, len(answer) + 1, 4)
    found = any(end >= run and stands_in(answer[end - run : end], secret) for end in ends)
    del answer[: max(0, len(answer) - run + 4)]
    return found


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="prompt-leak",
            version="0.1.0",
            settings_schema=json.dumps(SCHEMA),
            columns=Columns.OUTPUT_IDS,
            writes=IdShape.DELTA,
            wants=Calls(0),
        )

    def configure(self, text):
        for name, value in json.loads(text).items():
            schema = SCHEMA["properties"].get(name)
            if schema is None:
                raise Err(ConfigureError_Setting(BadSetting(f"/{name}", "is unknown")))
            if type(value) is not int or not schema["minimum"] <= value <= schema["maximum"]:
                message = f"is {json.dumps(value)}, must be from {schema['minimum']} to {schema['maximum']}"
                raise Err(ConfigureError_Setting(BadSetting(f"/{name}", message)))
            settings[name] = value

    def open(self, requests):
        for opened in requests:
            # This reads Afterbay's journal, so it happens once for each request.
            prompt = request.prompt_ids(opened.request)
            if prompt is None:
                log.log(log.Level.DEBUG, opened.request, "the prompt is not known: the answer passes")
                continue
            secrets[opened.request] = packed(prompt[: settings["first"]])
            answers[opened.request] = bytearray()

    def process(self, batch):
        verdicts, start = [], 0
        for row, number in enumerate(batch.requests):
            end = batch.output_ends[row]
            secret = secrets.get(number)
            if secret and leak(secret, answers[number], batch.output_ids[start:end]):
                metrics.counter_add("leaks", [], 1)
                cut = Replacement([], None)
                verdicts.append(Verdict(row, Action_Finish(Ending(FinishReason_Stop("prompt-leak"), cut))))
            start = end
        return verdicts

    def close(self, requests):
        for number in requests:
            secrets.pop(number, None)
            answers.pop(number, None)

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
