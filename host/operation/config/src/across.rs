//! Checks the streams against each other: sums that are bounded, and values that only one stream may have.

use crate::check::Check;
use crate::location::{Located, Location};
use crate::reader::nearest_of;
use crate::{Endpoint, bounds, written};

impl Check<'_> {
    /// Reports sums over all streams that exceed a bound, and values that two streams share.
    pub(crate) fn across(&self, streams: &[written::Stream], tap: Option<&written::Tap>) {
        self.most(
            streams.len(),
            bounds::STREAMS_MAX,
            "streams",
            streams.last().map(|stream| &stream.location),
        );
        let plugins = streams.iter().flat_map(|stream| &stream.plugins);
        let last = plugins.clone().last().map(|plugin| &plugin.location);
        self.most(plugins.count(), bounds::PLUGINS_OF_ALL_MAX, "plugins of all streams", last);
        self.listens(streams, tap);
        self.credits(streams);
        self.afters(streams);
    }

    /// Checks that `after` names streams of this file that have no `after` themselves, each at most once.
    fn afters(&self, streams: &[written::Stream]) {
        let mut followed: Vec<&Located<String>> = Vec::new();
        for stream in streams {
            let own = stream.name.as_ref().map(|name| name.value.as_str());
            for after in &stream.after {
                let report = |message: String| self.source.report(&after.location, message);
                let (value, first) = (&after.value, followed.iter().find(|other| other.value == after.value));
                let is_named = |stream: &&written::Stream| {
                    stream.name.as_ref().is_some_and(|name| name.value == after.value)
                };
                if own == Some(value) {
                    report(format!("{value:?} is this stream itself, must be another"));
                } else if let Some(first) = first {
                    let (key, line) = (&first.location.key, first.location.line);
                    report(format!("{value:?} is also named by {key} in line {line}, must be named once"));
                } else if let Some(named) = streams.iter().find(is_named) {
                    if !named.after.is_empty() {
                        report(format!(
                            "{value:?} has an after itself, a request passes at most two streams"
                        ));
                    }
                } else {
                    report(no_stream(value, streams));
                }
                followed.push(after);
            }
        }
    }

    /// Checks that no two sockets listen on one endpoint.
    fn listens(&self, streams: &[written::Stream], tap: Option<&written::Tap>) {
        let pushes = streams.iter().filter_map(|stream| stream.abort.as_ref()?.push.as_ref());
        let tap = tap.and_then(|tap| tap.listen.as_ref());
        let listens = streams.iter().filter_map(|stream| stream.listen.as_ref()).chain(pushes).chain(tap);
        let listens: Vec<(Endpoint, &Location)> =
            listens.filter_map(|listen| Some((listen.value.parse().ok()?, &listen.location))).collect();
        for (at, (listen, location)) in listens.iter().enumerate() {
            if let Some((_, first)) = listens[..at].iter().find(|(other, _)| listen.collides(other)) {
                let (key, line) = (&first.key, first.line);
                self.source.report(location, format!("\"{listen}\" is taken by {key} in line {line}"));
            }
        }
    }

    /// Checks that no two sinks share a credit page: its count would be the sum of both.
    fn credits(&self, streams: &[written::Stream]) {
        let sinks = streams.iter().flat_map(|stream| &stream.sinks);
        self.once(sinks.filter_map(|sink| sink.credit.as_ref()), |value, first| {
            format!("{value:?} is also {first}, must be one credit page per sink")
        });
    }

    /// Reports each value that an earlier entry has too. `words` makes the message from the value and the location of the
    /// first.
    pub(crate) fn once<'p>(
        &self,
        all: impl Iterator<Item = &'p Located<String>>,
        words: impl Fn(&str, &str) -> String,
    ) {
        let all: Vec<_> = all.collect();
        for (at, one) in all.iter().enumerate() {
            if let Some(first) = all[..at].iter().find(|other| other.value == one.value) {
                let first = format!("{} in line {}", first.location.key, first.location.line);
                self.source.report(&one.location, words(&one.value, &first));
            }
        }
    }
}

fn no_stream(name: &str, streams: &[written::Stream]) -> String {
    let names = || streams.iter().filter_map(|stream| stream.name.as_ref()).map(|name| name.value.as_str());
    match nearest_of(name, names()) {
        Some(nearest) => format!("no stream {name:?}, did you mean {nearest:?}?"),
        None => format!("no stream {name:?}, there are {}", names().collect::<Vec<_>>().join(", ")),
    }
}
