//! Checks the sinks of a stream.

use crate::check::{Check, SeenNames, value};
use crate::checked::{Reads, Sink, Takes};
use crate::location::Located;
use crate::{Endpoint, bounds, written};

impl Check<'_> {
    /// Returns `None` if a sink is wrong. The problems are reported.
    pub(crate) fn sinks(&self, stream: &written::Stream, listen: Option<&Endpoint>) -> Option<Vec<Sink>> {
        let mut names = SeenNames::default();
        let sinks = &stream.sinks;
        self.most(sinks.len(), bounds::SINKS_MAX, "readers", sinks.last().map(|sink| &sink.location));
        let shares: Vec<_> = sinks.iter().filter(|sink| takes(sink) == Takes::Share).collect();
        if let (Some(second), None) = (shares.get(1), &stream.route) {
            let why = "need a route: set route = \"crc32\"";
            self.source.report(&second.location, format!("{} readers {why}", shares.len()));
        }
        if let (true, Some(other)) = (shares.is_empty(), sinks.first()) {
            let why = "no sink is a reader, one must have kind = \"reader\"";
            self.source.report(&other.location, why.to_owned());
        }
        // One reader on two sinks would get both shares, and its credit would be the sum of both.
        self.once(sinks.iter().filter_map(|sink| sink.connect.as_ref()), |value, first| {
            format!("{value:?} is also {first}, must be one sink per reader")
        });
        let mut skipped = sinks.iter().filter(|sink| takes(sink) == Takes::Skipped);
        if let Some(second) = skipped.nth(1) {
            self.source
                .report(&second.location, "second sink of kind \"skipped\", must be at most one".to_owned());
        }
        if self.source.env.names == crate::Names::FromRendezvous {
            // The rendezvous gives the endpoint of a single reader.
            let only = shares.len() == 1;
            let named = sinks.iter().filter(|sink| !only || takes(sink) != Takes::Share);
            for sink in named.filter(|sink| sink.connect.is_none()) {
                let why = "connect is missing, the rendezvous file names only one reader";
                self.source.report(&sink.location, why.to_owned());
            }
        }
        let sinks: Vec<_> = sinks.iter().map(|sink| self.sink(sink, listen, &mut names)).collect();
        sinks.into_iter().collect()
    }

    fn sink(
        &self,
        written: &written::Sink,
        listen: Option<&Endpoint>,
        names: &mut SeenNames,
    ) -> Option<Sink> {
        let name = self.name(&written.name, names);
        let takes = takes(written);
        if let (Some(Located { value: Reads::Detokenizer, location }), Takes::Skipped) =
            (&written.reader, takes)
        {
            self.source
                .report(location, "the reader of a sink of kind \"skipped\" is a tokenizer".to_owned());
        }
        if let (Some(Located { value: Reads::Detokenizer, location }), Takes::FrontEnd) =
            (&written.reader, takes)
        {
            self.source
                .report(location, "the reader of a sink of kind \"front-end\" is a tokenizer".to_owned());
        }
        let reader = match takes {
            Takes::Skipped | Takes::FrontEnd => Reads::Tokenizer,
            Takes::Share | Takes::Routed => value(&written.reader).unwrap_or_default(),
        };
        Some(Sink {
            connect: self.connect(written, listen),
            queue: written.queue,
            name: name?,
            credit: self.path(&written.credit),
            takes,
            reader,
            tokenizer: self.tokenizer(&written.tokenizer),
            tool_calls: value(&written.tool_calls).unwrap_or_default(),
        })
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
}

fn takes(sink: &written::Sink) -> Takes {
    value(&sink.kind).unwrap_or_default()
}
