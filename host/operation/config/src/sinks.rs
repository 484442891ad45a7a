//! Checks the sinks of a stream: readers, which share its requests, and taps, which get copies.

use crate::check::{Check, SeenNames, value};
use crate::checked::{Queue, Reads, Sink, SinkKind, Takes, Tap, TapOf, TapSocket, TapSocketType};
use crate::location::Located;
use crate::units::Size;
use crate::{Endpoint, bounds, written};

/// Readers and taps.
type Sinks = (Vec<Sink>, Vec<Tap>);

impl Check<'_> {
    /// Returns `None` if a sink is wrong. The problems are reported.
    pub(crate) fn sinks(&self, stream: &written::Stream, listen: Option<&Endpoint>) -> Option<Sinks> {
        let mut names = SeenNames::default();
        let is_tap = |sink: &&written::Sink| value(&sink.kind) == Some(SinkKind::Tap);
        let (taps, readers): (Vec<_>, Vec<_>) = stream.sinks.iter().partition(is_tap);
        self.most(readers.len(), bounds::SINKS_MAX, "readers", readers.last().map(|sink| &sink.location));
        self.most(taps.len(), bounds::TAPS_MAX, "taps", taps.last().map(|tap| &tap.location));
        let shares: Vec<_> = readers.iter().filter(|sink| takes(sink) == Takes::Share).collect();
        if let (Some(second), None) = (shares.get(1), &stream.route) {
            let why = "need a route: set route = \"crc32\"";
            self.source.report(&second.location, format!("{} readers {why}", shares.len()));
        }
        if let (true, Some(other)) = (shares.is_empty(), stream.sinks.first()) {
            let why = "no sink is a reader, one must have kind = \"reader\"";
            self.source.report(&other.location, why.to_owned());
        }
        // One reader on two sinks would get both shares, and its credit would be the sum of both.
        self.once(readers.iter().filter_map(|sink| sink.connect.as_ref()), |value, first| {
            format!("{value:?} is also {first}, must be one sink per reader")
        });
        let mut skipped = readers.iter().filter(|sink| takes(sink) == Takes::Skipped);
        if let Some(second) = skipped.nth(1) {
            self.source
                .report(&second.location, "second sink of kind \"skipped\", must be at most one".to_owned());
        }
        if self.source.env.names == crate::Names::FromRendezvous {
            // The rendezvous gives the endpoint of a single reader.
            let connecting = taps.iter().filter(|tap| value(&tap.socket) != Some(TapSocketType::Pub));
            let only = shares.len() == 1;
            let named = readers.iter().filter(|sink| !only || takes(sink) != Takes::Share);
            let without = named.chain(connecting);
            for sink in without.filter(|sink| sink.connect.is_none()) {
                let why = "connect is missing, the rendezvous file names only one reader";
                self.source.report(&sink.location, why.to_owned());
            }
        }
        let readers: Vec<_> = readers.iter().map(|sink| self.reader(sink, listen, &mut names)).collect();
        let taps: Vec<_> = taps.iter().map(|tap| self.tap(tap, listen, &mut names)).collect();
        Some((readers.into_iter().collect::<Option<_>>()?, taps.into_iter().collect::<Option<_>>()?))
    }

    fn reader(
        &self,
        written: &written::Sink,
        listen: Option<&Endpoint>,
        names: &mut SeenNames,
    ) -> Option<Sink> {
        let name = self.name(&written.name, names);
        if let Some(Located { value: TapOf::Sent, location }) = &written.of {
            self.source.report(location, "\"sent\" is for a tap; this sink is not one".to_owned());
        }
        if let Some(Located { value: TapSocketType::Pub, location }) = &written.socket {
            self.source.report(location, "\"pub\" is for a tap; this sink is not one".to_owned());
        }
        self.for_a_pub(written, "a tap; this sink is not one");
        let takes = takes(written);
        if let (Some(Located { value: Reads::Detokenizer, location }), Takes::Skipped) =
            (&written.reader, takes)
        {
            self.source
                .report(location, "the reader of a sink of kind \"skipped\" is a tokenizer".to_owned());
        }
        if let (Some(Located { value: Reads::Detokenizer, location }), Takes::Worker) =
            (&written.reader, takes)
        {
            self.source.report(location, "the reader of a sink of kind \"worker\" is a tokenizer".to_owned());
        }
        let reader = match takes {
            Takes::Skipped | Takes::Worker => Reads::Tokenizer,
            Takes::Share | Takes::Routed => value(&written.reader).unwrap_or_default(),
        };
        Some(Sink {
            connect: self.connect(written, listen),
            queue: self.queue(written, Queue::default()),
            name: name?,
            credit: self.path(&written.credit),
            takes,
            reader,
            tokenizer: self.tokenizer(&written.tokenizer),
            tool_calls: value(&written.tool_calls).unwrap_or_default(),
        })
    }

    fn tap(&self, written: &written::Sink, listen: Option<&Endpoint>, names: &mut SeenNames) -> Option<Tap> {
        let name = self.name(&written.name, names);
        let (reader, location) = (&written.reader, |placed: &Located<String>| placed.location.clone());
        let of_readers = [
            written.credit.as_ref().map(location),
            reader.as_ref().map(|placed| placed.location.clone()),
            written.tokenizer.as_ref().map(location),
            written.tool_calls.as_ref().map(|placed| placed.location.clone()),
        ];
        for location in of_readers.iter().flatten() {
            self.source.report(location, "is for a reader; this sink is of kind \"tap\"".to_owned());
        }
        let socket = match value(&written.socket).unwrap_or_default() {
            TapSocketType::Push => {
                self.for_a_pub(written, "socket = \"pub\"; this socket is a push");
                self.connect(written, listen).map(TapSocket::Push)
            }
            TapSocketType::Pub => self.publishes(written),
        };
        let queue = self.queue(written, Tap::QUEUE);
        Some(Tap { name: name?, socket: socket?, of: value(&written.of).unwrap_or_default(), queue })
    }

    fn publishes(&self, written: &written::Sink) -> Option<TapSocket> {
        if let Some(Located { location, .. }) = &written.connect {
            self.source
                .report(location, "a PUB socket listens, must be listen in place of connect".to_owned());
        }
        if written.listen.is_none() {
            let why = "listen is missing, a tap with socket = \"pub\" needs it";
            self.source.report(&written.location, why.to_owned());
        }
        let most = self.within(&written.max_subscribers, bounds::MAX_SUBSCRIBERS, |&most| most);
        let listen_mode = self.listen_mode(&written.listen_mode).unwrap_or(TapSocket::LISTEN_MODE);
        let max_subscribers = most.map_or(TapSocket::MAX_SUBSCRIBERS, |most| most as usize);
        Some(TapSocket::Pub { listen: self.listen(&written.listen)?, listen_mode, max_subscribers })
    }

    /// Reports keys of a PUB socket in a sink that has none.
    fn for_a_pub(&self, written: &written::Sink, what: &str) {
        let text = |placed: &Located<String>| placed.location.clone();
        let keys = [
            written.listen.as_ref().map(text),
            written.listen_mode.as_ref().map(text),
            written.max_subscribers.as_ref().map(|placed| placed.location.clone()),
        ];
        for location in keys.iter().flatten() {
            self.source.report(location, format!("is for {what}"));
        }
    }

    fn connect(&self, written: &written::Sink, listen: Option<&Endpoint>) -> Option<Endpoint> {
        let connect = self.reachable(&written.connect);
        if let (Some(connect), Some(Located { value, location })) = (&connect, &written.connect)
            && !connect.is_listen_only()
            && listen.is_some_and(|listen| connect.reaches(listen))
        {
            self.source
                .report(location, format!("{value:?} is this stream's own listen, batches would loop"));
        }
        connect
    }

    fn queue(&self, written: &written::Sink, default: Queue) -> Queue {
        let frames = self.within(&written.queue.frames, bounds::QUEUE_FRAMES, |&frames| frames);
        let bytes = self.within(&written.queue.bytes, bounds::QUEUE_BYTES, |&bytes| Size(bytes));
        Queue {
            frames: frames.map_or(default.frames, |frames| frames as usize),
            bytes: bytes.unwrap_or(default.bytes),
        }
    }
}

fn takes(sink: &written::Sink) -> Takes {
    match value(&sink.kind) {
        Some(SinkKind::Routed) => Takes::Routed,
        Some(SinkKind::Skipped) => Takes::Skipped,
        Some(SinkKind::Worker) => Takes::Worker,
        _ => Takes::Share,
    }
}
