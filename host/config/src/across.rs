//! The streams against each other: what each may have, but not two of them.

use crate::check::Check;
use crate::place::{Place, Placed};
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
    }

    /// No two streams on one endpoint.
    fn listens(&self, streams: &[written::Stream]) {
        let listens = streams.iter().filter_map(|stream| stream.listen.as_ref());
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
        let pages: Vec<&Placed<String>> = sinks.filter_map(|sink| sink.credit.as_ref()).collect();
        for (at, page) in pages.iter().enumerate() {
            if let Some(first) = pages[..at].iter().find(|other| other.value == page.value) {
                let (value, key, line) = (&page.value, &first.place.key, first.place.line);
                self.source.tell(
                    &page.place,
                    format!(
                        "{value:?} is the page of {key} in line {line}, and one page counts for one sink"
                    ),
                );
            }
        }
    }
}
