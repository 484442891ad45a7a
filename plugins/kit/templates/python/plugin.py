"""{{name}}: ends a request at the first of some tokens. Replace this logic by your own."""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.plugin import BadSetting, ConfigureError_Setting
from wit_world.imports import log
from wit_world.imports.types import (
    Action_Finish,
    Calls,
    Columns,
    Description,
    Ending,
    FinishReason_Stop,
    IdShape,
    Verdict,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "stop": {"type": "array", "items": {"type": "integer"}, "description": "The token ids that end a request."}
    },
    "required": ["stop"],
    "additionalProperties": False,
}

# State that lasts from call to call must be global: each call has its own `Plugin`.
stop = set()


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="{{name}}",
            version="0.1.0",
            settings_schema=json.dumps(SCHEMA),
            columns=Columns.OUTPUT_IDS,
            writes=IdShape.DELTA,
            wants=Calls(0),
        )

    def configure(self, settings):
        tokens = json.loads(settings).get("stop")
        if not tokens or not all(isinstance(token, int) for token in tokens):
            raise Err(ConfigureError_Setting(BadSetting("/stop", "must be a list of at least one token id")))
        stop.update(tokens)

    def open(self, requests):
        pass

    def process(self, batch):
        verdicts, start = [], 0
        for row, request in enumerate(batch.requests):
            end = batch.output_ends[row]
            found = [token for token in batch.output_ids[start:end] if token in stop]
            if found:
                log.log(log.Level.INFO, request, f"stopped at token {found[0]}")
                verdicts.append(Verdict(row, Action_Finish(Ending(FinishReason_Stop("{{name}}"), None))))
            start = end
        return verdicts

    def close(self, requests):
        pass

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
