//! The streams against each other: what each may have, but not two of them.

use crate::check::Check;
use crate::place::{Place, Placed};
use crate::reader::nearest_of;
use crate::{Endpoint, bounds, written};

impl Check<'_> {
    /// Tells what the streams together are too many of, or want at once.
    pub(crate) fn across(&self, streams: &[written::Stream]) {
        self.most(streams.len(), bounds::STREAMS_MAX, "streams", streams.last().map(|stream| &stream.place));
        let plugins = streams.iter().flat_map(|stream| &stream.plugins);
        let last = plugins.clone().last().map(|plugin| &plugin.place);
        self.most(plugins.count(), bounds::PLUGINS_OF_ALL_MAX, "plugins of all streams", last);
        self.listens(streams);
        self.credits(streams);
        self.afters(streams);
    }

    /// A leg follows streams that are there and begin a life themselves, and none has two that follow.
    fn afters(&self, streams: &[written::Stream]) {
        let mut followed: Vec<&Placed<String>> = Vec::new();
        for stream in streams {
            let own = stream.name.as_ref().map(|name| name.value.as_str());
            for after in &stream.after {
                let tell = |message: String| self.source.tell(&after.place, message);
                let (value, first) = (&after.value, followed.iter().find(|other| other.value == after.value));
                let is_named = |stream: &&written::Stream| {
                    stream.name.as_ref().is_some_and(|name| name.value == after.value)
                };
                if own == Some(value) {
                    tell(format!("{value:?} is this stream itself, must be another"));
                } else if let Some(first) = first {
                    let (key, line) = (&first.place.key, first.place.line);
                    tell(format!(
                        "{value:?} is followed by {key} in line {line}, and a stream has one next leg"
                    ));
                } else if let Some(named) = streams.iter().find(is_named) {
                    if !named.after.is_empty() {
                        tell(format!("{value:?} is itself after a stream: a request has two legs at most"));
                    }
                } else {
                    tell(no_stream(value, streams));
                }
                followed.push(after);
            }
        }
    }

    /// Nothing is bound twice.
    fn listens(&self, streams: &[written::Stream]) {
        let pushes = streams.iter().filter_map(|stream| stream.abort.as_ref()?.push.as_ref());
        let taps = streams.iter().flat_map(|stream| &stream.sinks).filter_map(|sink| sink.listen.as_ref());
        let listens = streams.iter().filter_map(|stream| stream.listen.as_ref()).chain(pushes).chain(taps);
        let listens: Vec<(Endpoint, &Place)> =
            listens.filter_map(|listen| Some((listen.value.parse().ok()?, &listen.place))).collect();
        for (at, (listen, place)) in listens.iter().enumerate() {
            if let Some((_, first)) = listens[..at].iter().find(|(other, _)| listen.collides(other)) {
                let (key, line) = (&first.key, first.line);
                self.source.tell(place, format!("\"{listen}\" is taken by {key} in line {line}"));
            }
        }
    }

    /// No two sinks on one page: the reader counts what it had from all of them together.
    fn credits(&self, streams: &[written::Stream]) {
        let sinks = streams.iter().flat_map(|stream| &stream.sinks);
        self.once(sinks.filter_map(|sink| sink.credit.as_ref()), |value, first| {
            format!("{value:?} is the page of {first}, and one page counts for one sink")
        });
    }

    /// Tells of each of these that is one before it, too; how, `words` says, out of the value and where it is first.
    pub(crate) fn once<'p>(
        &self,
        all: impl Iterator<Item = &'p Placed<String>>,
        words: impl Fn(&str, &str) -> String,
    ) {
        let all: Vec<_> = all.collect();
        for (at, one) in all.iter().enumerate() {
            if let Some(first) = all[..at].iter().find(|other| other.value == one.value) {
                let first = format!("{} in line {}", first.place.key, first.place.line);
                self.source.tell(&one.place, words(&one.value, &first));
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
