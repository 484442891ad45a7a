//! Whose sockets each stream has: those of the configuration, or those that the connector has named in a rendezvous file.
//!
//! Owns which file is which stream's, when a file says something new, and what is told of it. What a file says is
//! [`Rendezvous`]'s.

mod file;

pub(crate) use file::{Rendezvous, RendezvousError, Worker, is_alive};

use afterbay_config as config;
use afterbay_events::event::StreamAbsent;
use afterbay_events::{Events, Health};
use anyhow::ensure;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How a stream comes to its sockets.
#[derive(Clone, Debug)]
pub(crate) enum Meeting {
    /// As the configuration names them.
    Configured,
    /// As the connector has named them.
    Met(Box<Rendezvous>),
    /// A next leg whose reader has yet to write this file.
    Awaited(PathBuf),
    /// A next leg that is not to be had, and why. Nothing is waited for.
    Absent(String),
}

impl Meeting {
    pub(crate) fn met(&self) -> Option<&Rendezvous> {
        match self {
            Meeting::Met(met) => Some(met),
            Meeting::Configured | Meeting::Awaited(_) | Meeting::Absent(_) => None,
        }
    }

    /// The stream can run.
    pub(crate) fn has_sockets(&self) -> bool {
        matches!(self, Meeting::Configured | Meeting::Met(_))
    }

    /// Living sockets are let go for those that `now` names. A file that is gone, or not of this server, is no reason.
    pub(crate) fn is_elsewhere(&self, now: &Meeting) -> bool {
        matches!((self.met(), now.met()), (Some(before), Some(now)) if !before.is_same(now))
    }
}

/// How each stream of the configuration stands, in its order. `None`: a scheduler has yet to write its file, or is gone.
///
/// The file of a stream is `pattern` with its place among the schedulers' streams for `{dp_rank}`; that of a next leg is
/// the file of the first stream that it comes after, and `.text` behind it.
pub(crate) fn look(
    config: &config::Config,
    pattern: Option<&Path>,
) -> Result<Option<Vec<Meeting>>, RendezvousError> {
    let Some(pattern) = pattern else {
        return Ok(Some(vec![Meeting::Configured; config.streams.len()]));
    };
    let mut schedulers: Vec<(&config::Name, PathBuf, Rendezvous)> = Vec::new();
    for stream in config.streams.iter().filter(|stream| stream.after.is_empty()) {
        let file = file_of(pattern, schedulers.len());
        match Rendezvous::read(&file)? {
            Some(found) if found.is_alive() => schedulers.push((&stream.name, file, found)),
            _ => return Ok(None),
        }
    }
    let meeting = |stream: &config::Stream| {
        let name = stream.after.first().unwrap_or(&stream.name);
        match schedulers.iter().find(|(known, ..)| *known == name) {
            Some((_, _, scheduler)) if stream.after.is_empty() => {
                Ok(Meeting::Met(Box::new(scheduler.clone())))
            }
            Some((_, file, scheduler)) => next_leg(file, scheduler),
            // The configuration's check lets no other name through.
            None => Ok(Meeting::Absent(format!("there is no stream {:?}", name.as_str()))),
        }
    };
    config.streams.iter().map(meeting).collect::<Result<_, _>>().map(Some)
}

/// How the streams of another configuration stand: those that run keep their sockets, though their server was started again
/// meanwhile. That is seen as ever, when they are compared with what is there next.
pub(crate) fn of_those_that_run(
    before: &config::Config,
    meetings: &[Meeting],
    after: &config::Config,
    now: Vec<Meeting>,
) -> Vec<Meeting> {
    let runs = |name: &config::Name| {
        let mut known = before.streams.iter().zip(meetings);
        known.find(|(stream, meeting)| stream.name == *name && meeting.has_sockets())
    };
    let each = after.streams.iter().zip(now);
    each.map(|(stream, now)| runs(&stream.name).map_or(now, |(_, meeting)| meeting.clone())).collect()
}

fn next_leg(file: &Path, scheduler: &Rendezvous) -> Result<Meeting, RendezvousError> {
    let mut text = file.as_os_str().to_owned();
    text.push(".text");
    let text = PathBuf::from(text);
    match (Rendezvous::read(&text)?, &scheduler.text_ingress, &scheduler.text_none) {
        (Some(found), ..) if found.is_alive() && found.instance_id == scheduler.instance_id => {
            Ok(Meeting::Met(Box::new(found)))
        }
        (_, Some(_), _) => Ok(Meeting::Awaited(text)),
        (_, None, Some(why)) => Ok(Meeting::Absent(why.clone())),
        (_, None, None) => Ok(Meeting::Absent("this connector knows of no text leg".to_owned())),
    }
}

/// The tokenizers behind the reader that was met, a sink for each: `READER-0` and on.
pub(crate) fn workers(
    stream: &config::Stream,
    met: Option<&Rendezvous>,
) -> anyhow::Result<Vec<config::Sink>> {
    let reader =
        stream.sinks.iter().find(|sink| sink.connect.is_none() && sink.takes == config::Takes::Share);
    let Some((met, reader)) = met.zip(reader) else { return Ok(Vec::new()) };
    let (sinks, most) = (stream.sinks.len() + met.workers.len(), config::bounds::SINKS_MAX);
    ensure!(
        sinks <= most,
        "stream {:?}: {sinks} sinks with one for each tokenizer, must be at most {most}",
        stream.name.as_str()
    );
    let worker = |(number, worker): (usize, &Worker)| {
        let name = format!("{}-{number}", reader.name);
        let is_taken = stream.sinks.iter().any(|sink| sink.name.as_str() == name);
        ensure!(
            !is_taken,
            "stream {:?}: sink {name:?}: a tokenizer is called so, call it otherwise",
            stream.name.as_str()
        );
        Ok(config::Sink {
            name: name.parse()?,
            connect: Some(worker.ipc.parse()?),
            credit: worker.credit.clone(),
            takes: config::Takes::Worker,
            reader: config::Reads::Tokenizer,
            ..reader.clone()
        })
    };
    met.workers.iter().enumerate().map(worker).collect()
}

fn file_of(pattern: &Path, rank: usize) -> PathBuf {
    PathBuf::from(pattern.to_string_lossy().replace("{dp_rank}", &rank.to_string()))
}

/// Says of each stream where its sockets are from, or why it does not run.
pub(crate) fn tell(config: &config::Config, meetings: &[Meeting], events: &Events, health: &Health) {
    for (stream, meeting) in config.streams.iter().zip(meetings) {
        let key = format!("rendezvous:{}", stream.name);
        match meeting {
            Meeting::Configured => {}
            Meeting::Met(met) => {
                health.clear(&key);
                tracing::info!(
                    target: "afterbay",
                    "rendezvous: stream {:?}: sglang {} (pid {}), {}, {}, reader {}{}{}",
                    stream.name.as_str(),
                    met.sglang.as_deref().unwrap_or("of unknown version"),
                    met.pid,
                    met.mode,
                    met.ipc_format,
                    met.down,
                    match met.workers.len() {
                        0 => String::new(),
                        workers => format!(" and {workers} workers behind it"),
                    },
                    met.credit_none.as_ref().map(|why| format!(", no credit: {why}")).unwrap_or_default(),
                );
            }
            Meeting::Awaited(file) => {
                let text = format!("waits for the detokenizer to write {}", file.display());
                tracing::info!(target: "afterbay", "rendezvous: stream {:?}: {text}", stream.name.as_str());
                health.not_ready(&key, text, SystemTime::now());
            }
            Meeting::Absent(why) => {
                health.clear(&key);
                events.publish(StreamAbsent { stream: stream.name.as_str().into(), why: why.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(pid: u32) -> Meeting {
        let found = serde_json::json!({
            "format": 1, "pid": pid, "written_unix_ns": 1, "mode": "detokenizer", "ipc_format": "msgpack",
            "ingress": "ipc:///in", "down": "ipc:///out", "down_kind": "detokenizer",
        });
        Meeting::Met(Box::new(serde_json::from_value(found).unwrap()))
    }

    fn config(names: &[&str]) -> config::Config {
        let stream = |name: &&str| {
            let endpoint = |end: &str| format!("ipc:///run/{name}-{end}").parse().unwrap();
            config::Stream::new(name.parse().unwrap(), endpoint("in"), endpoint("out"))
        };
        let streams: Vec<config::Stream> = names.iter().map(stream).collect();
        let mut config = config::Config::new(streams[0].clone(), "/var/lib/afterbay");
        config.streams = streams;
        config
    }

    #[test]
    fn a_stream_that_runs_keeps_its_meeting_over_a_reload_so_that_a_server_s_restart_meanwhile_is_seen() {
        let (before, after) = (config(&["gone", "runs", "waits"]), config(&["new", "runs", "waits"]));
        let waits = Meeting::Awaited(PathBuf::from("rendezvous.json.text"));
        let now = vec![met(2), met(2), met(2)];
        let kept = of_those_that_run(&before, &[met(1), met(1), waits], &after, now.clone());
        let pids: Vec<u32> = kept.iter().filter_map(|meeting| Some(meeting.met()?.pid)).collect();
        assert_eq!(pids, [2, 1, 2]);
        let is_elsewhere: Vec<bool> =
            kept.iter().zip(&now).map(|(kept, now)| kept.is_elsewhere(now)).collect();
        assert_eq!(is_elsewhere, [false, true, false]);
    }
}
