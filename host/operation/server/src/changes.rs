//! Compares two checked configurations: which changes a reload can make, and which need a restart.

use afterbay_config::{Config, Endpoint, Journal, Plugin, Sink, Stream};

/// The changed keys that need a restart, each with the reason.
pub(crate) fn refused(before: &Config, after: &Config) -> Vec<String> {
    let mut keys = Vec::new();
    let mut differs = |is_other: bool, key: &str| {
        if is_other {
            keys.push(format!("{key}: a change needs a restart"));
        }
    };
    let Journal { dir, sync, sync_interval, retain, segment_bytes, on_error, abandon_after, erase } =
        &before.journal;
    let journal = &after.journal;
    differs(*dir != journal.dir, "journal.dir");
    differs(*sync != journal.sync, "journal.sync");
    differs(*sync_interval != journal.sync_interval, "journal.sync_interval");
    differs(*retain != journal.retain, "journal.retain");
    differs(*segment_bytes != journal.segment_bytes, "journal.segment");
    differs(*on_error != journal.on_error, "journal.on_error");
    differs(*abandon_after != journal.abandon_after, "journal.abandon_after");
    differs(*erase != journal.erase, "journal.erase");
    differs(before.memory != after.memory, "memory.waiting");
    differs(before.log.filter != after.log.filter, "log.filter");
    differs(before.log.format != after.log.format, "log.format");
    for (before, after) in in_both(before, after) {
        let mut differs = |is_other: bool, key: &str| {
            differs(is_other, &format!("stream {:?}: {key}", before.name.as_str()));
        };
        differs(before.listen != after.listen, "listen");
        differs(before.listen_mode != after.listen_mode, "listen_mode");
        differs(before.after != after.after, "after");
        differs(before.max_message_bytes != after.max_message_bytes, "max_message");
        differs(before.max_peers != after.max_peers, "max_peers");
        differs(before.route != after.route, "route");
    }
    keys.extend(in_both(before, after).flat_map(|(before, after)| sinks(before, after)));
    keys.extend(bound_twice(before, after));
    keys
}

/// New listeners on endpoints that are bound until the reload is done.
fn bound_twice(before: &Config, after: &Config) -> Vec<String> {
    let bound: Vec<&Endpoint> = before.streams.iter().map(|stream| &stream.listen).collect();
    let is_new = |stream: &&Stream| before.streams.iter().all(|known| known.name != stream.name);
    let twice = after.streams.iter().filter(is_new).filter(|stream| bound.contains(&&stream.listen));
    let sentence = |stream: &Stream| {
        let (name, listen) = (stream.name.as_str(), &stream.listen);
        format!(
            "stream {name:?}: listen: {listen} is in use until this reload is done: leave it out in one, and add it in \
             the next"
        )
    };
    twice.map(sentence).collect()
}

/// Refused changes of a stream's sinks: only the present reader of a live request knows how the request began.
fn sinks(before: &Stream, after: &Stream) -> Vec<String> {
    let stream = before.name.as_str();
    let mut refused = Vec::new();
    for (sinks, others, what) in
        [(&after.sinks, &before.sinks, "adding it"), (&before.sinks, &after.sinks, "removing it")]
    {
        let lacks = sinks.iter().filter(|sink| others.iter().all(|other| other.name != sink.name));
        let sentence =
            |sink: &Sink| format!("stream {stream:?}: sink {:?}: {what} needs a restart", sink.name.as_str());
        refused.extend(lacks.map(sentence));
    }
    let names =
        |stream: &Stream| -> Vec<String> { stream.sinks.iter().map(|sink| sink.name.to_string()).collect() };
    if refused.is_empty() && names(before) != names(after) {
        refused.push(format!("stream {stream:?}: sink: another order needs a restart"));
    }
    for (before_sink, after_sink) in sinks_in_both(before, after) {
        // Destructured, so that a further key is not forgotten here.
        let Sink { name, connect, credit, reader, tokenizer, tool_calls, queue: _, takes } = before_sink;
        let keys = [
            (*connect != after_sink.connect, "connect"),
            (*credit != after_sink.credit, "credit"),
            (*reader != after_sink.reader, "reader"),
            (*tokenizer != after_sink.tokenizer, "tokenizer"),
            (*tool_calls != after_sink.tool_calls, "tool_calls"),
            (*takes != after_sink.takes, "kind"),
        ];
        let sink = name.as_str();
        refused.extend(
            keys.iter()
                .filter(|(is_other, _)| *is_other)
                .map(|(_, key)| format!("stream {stream:?}: sink {sink:?}: {key}: a change needs a restart")),
        );
    }
    refused
}

/// The sinks that are in both streams, by name.
fn sinks_in_both<'c>(before: &'c Stream, after: &'c Stream) -> impl Iterator<Item = (&'c Sink, &'c Sink)> {
    before
        .sinks
        .iter()
        .filter_map(|sink| Some((sink, after.sinks.iter().find(|other| other.name == sink.name)?)))
}

/// The differences between two configurations, each in a few words.
pub(crate) fn differences(before: &Config, after: &Config) -> Vec<String> {
    let mut differences = Vec::new();
    let is_in =
        |config: &Config, stream: &Stream| config.streams.iter().any(|other| other.name == stream.name);
    for stream in after.streams.iter().filter(|stream| !is_in(before, stream)) {
        differences.push(format!("stream {:?} added", stream.name.as_str()));
    }
    for (before, after) in in_both(before, after) {
        let stream = before.name.as_str();
        for plugin in &after.plugins {
            let what = match before.plugins.iter().find(|known| known.name == plugin.name) {
                None => "added",
                Some(known) if !stays(known, plugin) => "changed",
                Some(known) if known != plugin => "options changed",
                Some(_) => continue,
            };
            differences.push(format!("plugin {:?} of {stream:?} {what}", plugin.name.as_str()));
        }
        let gone = before
            .plugins
            .iter()
            .filter(|known| after.plugins.iter().all(|plugin| plugin.name != known.name));
        differences
            .extend(gone.map(|plugin| format!("plugin {:?} of {stream:?} removed", plugin.name.as_str())));
        let stay = |one: &Stream, other: &Stream| -> Vec<String> {
            let is_there = |plugin: &&Plugin| other.plugins.iter().any(|known| known.name == plugin.name);
            one.plugins.iter().filter(is_there).map(|plugin| plugin.name.to_string()).collect()
        };
        let mut both = sinks_in_both(before, after);
        let others = [
            (stay(before, after) != stay(after, before), "the order of the plugins"),
            (before.join != after.join, "join"),
            (both.any(|(before, after)| before.queue != after.queue), "queue"),
            (before.abort != after.abort, "abort"),
            (before.migration != after.migration, "migration"),
            (before.signals != after.signals, "signals"),
            (before.attributes != after.attributes, "attribute"),
        ];
        let others = others.into_iter().filter(|(is_other, _)| *is_other);
        differences.extend(others.map(|(_, what)| format!("{what} of {stream:?} changed")));
    }
    for stream in before.streams.iter().filter(|stream| !is_in(after, stream)) {
        differences.push(format!("stream {:?} removed", stream.name.as_str()));
    }
    if before.calls != after.calls {
        differences.push("call changed".to_owned());
    }
    if before.leases != after.leases {
        differences.push("leases changed".to_owned());
    }
    if before.traces != after.traces {
        differences.push("traces changed".to_owned());
    }
    if before.replicate != after.replicate {
        differences.push("replicate changed".to_owned());
    }
    if before.archive != after.archive {
        differences.push("archive changed".to_owned());
    }
    if before.usage != after.usage {
        differences.push("usage changed".to_owned());
    }
    if before.clients != after.clients {
        differences.push("clients changed".to_owned());
    }
    if before.tap != after.tap {
        differences.push("tap changed".to_owned());
    }
    if before.admin != after.admin {
        differences.push("admin changed".to_owned());
    }
    differences
}

/// Whether the plugin keeps its instance: everything that the instance was made with is the same.
pub(crate) fn stays(before: &Plugin, after: &Plugin) -> bool {
    let Plugin {
        name,
        component,
        sha256,
        allowed,
        limits,
        on_fault: _,
        quarantine: _,
        mode: _,
        grant,
        settings,
        files: _,
        place: _,
        settings_place: _,
    } = before;
    (name, component, sha256, limits) == (&after.name, &after.component, &after.sha256, &after.limits)
        && (grant, settings, allowed) == (&after.grant, &after.settings, &after.allowed)
}

/// The streams that are in both configurations, by name.
fn in_both<'c>(before: &'c Config, after: &'c Config) -> impl Iterator<Item = (&'c Stream, &'c Stream)> {
    before
        .streams
        .iter()
        .filter_map(|stream| Some((stream, after.streams.iter().find(|other| other.name == stream.name)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str, listen: &str) -> Stream {
        Stream::new(name.parse().unwrap(), listen.parse().unwrap(), "ipc:///run/out".parse().unwrap())
    }

    fn config(streams: Vec<Stream>) -> Config {
        let mut config = Config::new(stream("only", "ipc:///run/only"), "/var/lib/afterbay");
        config.streams = streams;
        config
    }

    #[test]
    fn what_is_to_listen_where_something_does_until_the_reload_is_done_is_refused_by_name() {
        let before = config(vec![stream("a", "ipc:///run/a")]);
        let in_use = "is in use until this reload is done: leave it out in one, and add it in the next";
        let renamed = refused(&before, &config(vec![stream("b", "ipc:///run/a")]));
        assert_eq!(renamed, [format!("stream \"b\": listen: ipc:///run/a {in_use}")]);
    }

    #[test]
    fn other_sinks_and_another_order_of_them_need_a_restart() {
        let with = |sinks: &[&str]| {
            let mut stream = stream("a", "ipc:///run/a");
            let sink = |name: &&str| Sink { name: name.parse().unwrap(), ..stream.sinks[0].clone() };
            stream.sinks = sinks.iter().map(sink).collect();
            config(vec![stream])
        };
        let refused = |after: &[&str]| refused(&with(&["x", "y"]), &with(after));
        let sentence = |what: &str| format!("stream \"a\": sink{what} needs a restart");
        assert_eq!(refused(&["x", "y", "z"]), [sentence(" \"z\": adding it")]);
        assert_eq!(refused(&["x"]), [sentence(" \"y\": removing it")]);
        assert_eq!(refused(&["z", "y"]), [sentence(" \"z\": adding it"), sentence(" \"x\": removing it")]);
        assert_eq!(refused(&["y", "x"]), [sentence(": another order")]);
        assert_eq!(refused(&["x", "y"]), [""; 0]);
    }
}
