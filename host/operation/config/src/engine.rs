//! Checks `engine`: keys of a stream that belong to SGLang only.

use crate::Engine;
use crate::check::{Check, value};
use crate::checked::Takes;
use crate::location::Location;
use crate::written;

impl Check<'_> {
    /// Reports the keys that the stream's engine does not have, each with the reason.
    pub(crate) fn engine(&self, engine: Engine, stream: &written::Stream) {
        if engine == Engine::Sglang {
            return;
        }
        let report = |location: Option<&Location>, why: &str| {
            if let Some(location) = location {
                self.source.report(location, format!("is not for a vLLM stream: {why}"));
            }
        };
        report(of(&stream.layout), "the length of vLLM's arrays tells their fields");
        report(
            stream.after.first().map(|after| &after.location),
            "vLLM has no detokenizer between two sockets",
        );
        report(of(&stream.route), "each front end of vLLM has a socket and so a stream of its own");
        report(of(&stream.signals.load_snapshot), "vLLM's frames have its load");
        for sink in &stream.sinks {
            let no_detokenizer = "vLLM's front end makes the text itself";
            report(of(&sink.reader), no_detokenizer);
            match value(&sink.kind) {
                Some(Takes::Skipped) => report(of(&sink.kind), no_detokenizer),
                Some(Takes::Worker) => {
                    report(of(&sink.kind), "each front end of vLLM has a socket and so a stream of its own");
                }
                _ => {}
            }
        }
    }
}

fn of<T>(written: &Option<crate::location::Located<T>>) -> Option<&Location> {
    written.as_ref().map(|written| &written.location)
}
