//! Checks `engine`: keys of a stream that not every engine has.

use crate::Engine;
use crate::check::{Check, value};
use crate::checked::Takes;
use crate::location::Location;
use crate::written;

impl Check<'_> {
    /// Reports the keys that the stream's engine does not have, each with the reason.
    pub(crate) fn engine(&self, engine: Engine, stream: &written::Stream) {
        let (name, traits) = (engine.name(), engine.traits());
        let report = |applies: bool, location: Option<&Location>, why: &str| {
            if let Some(location) = location.filter(|_| !applies) {
                self.source.report(location, format!("is not for a {name} stream: {why}"));
            }
        };
        let own_socket = format!("each front end of {name} has a socket and so a stream of its own");
        let has_shared = !traits.has_stream_per_front_end;
        report(
            traits.has_second_leg,
            stream.after.first().map(|after| &after.location),
            &format!("{name} has no detokenizer between two sockets"),
        );
        report(has_shared, of(&stream.route), &own_socket);
        let has_file = !traits.has_load_in_frames;
        report(has_file, of(&stream.signals.load_snapshot), &format!("{name}'s frames have its load"));
        let no_detokenizer = format!("{name}'s front end makes the text itself");
        for sink in &stream.sinks {
            report(traits.has_second_leg, of(&sink.reader), &no_detokenizer);
            match value(&sink.kind) {
                Some(Takes::Skipped) => report(traits.has_second_leg, of(&sink.kind), &no_detokenizer),
                Some(Takes::FrontEnd) => report(has_shared, of(&sink.kind), &own_socket),
                _ => {}
            }
        }
    }
}

fn of<T>(written: &Option<crate::location::Located<T>>) -> Option<&Location> {
    written.as_ref().map(|written| &written.location)
}
