//! The sockets of each stream: named by the configuration, or by the engine's connector in a rendezvous file.
//!
//! This file decides which rendezvous file belongs to which stream, and reports what it found. `file.rs` reads one file.

mod file;

use file::SilentFile;
pub use file::is_alive;
pub(crate) use file::{RendezvousError, RendezvousFile, Worker};

use afterbay_config as config;
use afterbay_events::event::StreamAbsent;
use afterbay_events::{Events, Health};
use anyhow::ensure;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The sockets of a stream.
#[derive(Clone, Debug)]
pub(crate) enum StreamSockets {
    /// The configuration names them.
    Configured,
    /// The connector named them in this file.
    Found(Box<RendezvousFile>),
    /// The detokenizer has yet to write this file, which names the sockets of a second leg.
    Awaited(PathBuf),
    /// A second leg cannot run, for this reason. Nothing waits for it.
    Absent(String),
}

impl StreamSockets {
    /// The file that named the sockets.
    pub(crate) fn file(&self) -> Option<&RendezvousFile> {
        match self {
            StreamSockets::Found(file) => Some(file),
            StreamSockets::Configured | StreamSockets::Awaited(_) | StreamSockets::Absent(_) => None,
        }
    }

    pub(crate) fn are_known(&self) -> bool {
        matches!(self, StreamSockets::Configured | StreamSockets::Found(_))
    }

    /// Whether `now` names sockets of another engine. A file that is missing or unreadable for a moment does not count.
    pub(crate) fn has_moved(&self, now: &StreamSockets) -> bool {
        matches!((self.file(), now.file()), (Some(before), Some(now)) if !before.is_same(now))
    }
}

/// Finds the sockets of each stream, in the order of the configuration. `None`: a scheduler has not written its file, or
/// has ended.
///
/// The file of a scheduler's stream is `pattern`, with the number of the stream among such streams for `{dp_rank}` (SGLang's rank)
/// or `{client}` (vLLM's API server). The file of a second leg has the name of its first leg's file with `.text` appended.
pub(crate) fn find(
    config: &config::Config,
    pattern: Option<&Path>,
) -> Result<Option<Vec<StreamSockets>>, RendezvousError> {
    let Some(pattern) = pattern else {
        return Ok(Some(vec![StreamSockets::Configured; config.streams.len()]));
    };
    let mut schedulers: Vec<(&config::Name, PathBuf, RendezvousFile)> = Vec::new();
    for stream in config.streams.iter().filter(|stream| stream.after.is_empty()) {
        let file = file_of(pattern, schedulers.len());
        match RendezvousFile::read(&file)? {
            Some(found) if found.is_alive() => {
                found.check(&file, stream)?;
                schedulers.push((&stream.name, file, found));
            }
            _ => return Ok(None),
        }
    }
    let sockets = |stream: &config::Stream| {
        let name = stream.after.first().unwrap_or(&stream.name);
        match schedulers.iter().find(|(known, ..)| *known == name) {
            Some((_, _, scheduler)) if stream.after.is_empty() => {
                Ok(StreamSockets::Found(Box::new(scheduler.clone())))
            }
            Some((_, file, scheduler)) => next_leg(file, scheduler),
            // The check of the configuration refuses unknown names.
            None => Ok(StreamSockets::Absent(format!("there is no stream {:?}", name.as_str()))),
        }
    };
    config.streams.iter().map(sockets).collect::<Result<_, _>>().map(Some)
}

/// The reason why no scheduler of this node writes its file: a scheduler of another node sends the output.
pub(crate) fn silence(pattern: Option<&Path>) -> Option<String> {
    let silent = SilentFile::read(&appended(&file_of(pattern?, 0), ".silent"))?;
    silent.is_alive().then_some(silent.why)
}

/// The sockets of another configuration's streams: streams that run keep theirs, even if the engine was restarted meanwhile.
/// The next comparison with [`StreamSockets::has_moved`] finds that restart.
pub(crate) fn keep_running(
    before: &config::Config,
    sockets: &[StreamSockets],
    after: &config::Config,
    now: Vec<StreamSockets>,
) -> Vec<StreamSockets> {
    let runs = |name: &config::Name| {
        let mut known = before.streams.iter().zip(sockets);
        known.find(|(stream, sockets)| stream.name == *name && sockets.are_known())
    };
    let each = after.streams.iter().zip(now);
    each.map(|(stream, now)| runs(&stream.name).map_or(now, |(_, sockets)| sockets.clone())).collect()
}

fn next_leg(file: &Path, scheduler: &RendezvousFile) -> Result<StreamSockets, RendezvousError> {
    let text = appended(file, ".text");
    match (RendezvousFile::read(&text)?, &scheduler.text_ingress, &scheduler.text_none) {
        (Some(found), ..) if found.is_alive() && found.instance_id == scheduler.instance_id => {
            Ok(StreamSockets::Found(Box::new(found)))
        }
        (_, Some(_), _) => Ok(StreamSockets::Awaited(text)),
        (_, None, Some(why)) => Ok(StreamSockets::Absent(why.clone())),
        (_, None, None) => Ok(StreamSockets::Absent("this connector knows of no text leg".to_owned())),
    }
}

/// A sink for each tokenizer worker that the rendezvous file names: `READER-0`, `READER-1` and so on.
pub(crate) fn workers(
    stream: &config::Stream,
    rendezvous: Option<&RendezvousFile>,
) -> anyhow::Result<Vec<config::Sink>> {
    let reader =
        stream.sinks.iter().find(|sink| sink.connect.is_none() && sink.takes == config::Takes::Share);
    let Some((rendezvous, reader)) = rendezvous.zip(reader) else { return Ok(Vec::new()) };
    let (sinks, most) = (stream.sinks.len() + rendezvous.workers.len(), config::bounds::SINKS_MAX);
    ensure!(
        sinks <= most,
        "stream {:?}: {sinks} sinks with one for each tokenizer worker, must be at most {most}",
        stream.name.as_str()
    );
    let worker = |(number, worker): (usize, &Worker)| {
        let name = format!("{}-{number}", reader.name);
        let is_taken = stream.sinks.iter().any(|sink| sink.name.as_str() == name);
        ensure!(
            !is_taken,
            "stream {:?}: sink {name:?}: a tokenizer worker has this name, rename the sink",
            stream.name.as_str()
        );
        Ok(config::Sink {
            name: name.parse()?,
            connect: Some(worker.ipc.parse()?),
            credit: worker.credit.clone(),
            takes: config::Takes::FrontEnd,
            reader: config::Reads::Tokenizer,
            ..reader.clone()
        })
    };
    rendezvous.workers.iter().enumerate().map(worker).collect()
}

fn file_of(pattern: &Path, number: usize) -> PathBuf {
    let (pattern, number) = (pattern.to_string_lossy(), number.to_string());
    PathBuf::from(pattern.replace("{dp_rank}", &number).replace("{client}", &number))
}

fn appended(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Reports for each stream where its sockets come from, or why the stream does not run.
pub(crate) fn report(config: &config::Config, sockets: &[StreamSockets], events: &Events, health: &Health) {
    for (stream, sockets) in config.streams.iter().zip(sockets) {
        let key = format!("rendezvous:{}", stream.name);
        match sockets {
            StreamSockets::Configured => {}
            StreamSockets::Found(rendezvous) => {
                health.clear(&key);
                tracing::info!(
                    target: "afterbay",
                    "rendezvous: stream {:?}: {} (pid {}), {}, {}, reader {}{}{}",
                    stream.name.as_str(),
                    rendezvous.engine(),
                    rendezvous.pid,
                    rendezvous.mode,
                    rendezvous.ipc_format,
                    rendezvous.down,
                    match rendezvous.workers.len() {
                        0 => String::new(),
                        workers => format!(" and {workers} workers behind it"),
                    },
                    rendezvous.credit_none.as_ref().map(|why| format!(", no credit: {why}")).unwrap_or_default(),
                );
            }
            StreamSockets::Awaited(file) => {
                let text = format!("waits for the detokenizer to write {}", file.display());
                tracing::info!(target: "afterbay", "rendezvous: stream {:?}: {text}", stream.name.as_str());
                health.not_ready(&key, text, SystemTime::now());
            }
            StreamSockets::Absent(why) => {
                health.clear(&key);
                events.publish(StreamAbsent { stream: stream.name.as_str().into(), why: why.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(engine: &str, pid: u32, written_unix_ns: u64) -> StreamSockets {
        let found = serde_json::json!({
            "format": 1, "engine": engine, "leg": "tokens", "pid": pid, "written_unix_ns": written_unix_ns,
            "mode": "normal", "ipc_format": "msgpack", "ingress": "ipc:///in", "down": "ipc:///out",
            "down_kind": "api_server",
        });
        StreamSockets::Found(Box::new(serde_json::from_value(found).unwrap()))
    }

    fn found(pid: u32) -> StreamSockets {
        written("sglang", pid, 1)
    }

    #[test]
    fn each_engine_of_vllm_writes_the_same_file_and_only_another_process_is_a_restart() {
        let first = written("vllm", 1, 1);
        assert!(!first.has_moved(&written("vllm", 1, 2)));
        assert!(first.has_moved(&written("vllm", 2, 1)));
        assert!(found(1).has_moved(&written("sglang", 1, 2)), "SGLang's scheduler writes once");
    }

    #[test]
    fn a_file_of_another_engine_than_the_streams_is_refused() {
        let StreamSockets::Found(file) = written("smg", 1, 1) else { panic!("no file") };
        let stream = &config(&["main"]).streams[0];
        let refused = file.check(Path::new("r.json"), stream).unwrap_err().to_string();
        let expected = "rendezvous r.json: the scheduler sends messages of \"smg\", stream \"main\" has engine = \"sglang\"";
        assert_eq!(refused, expected);
        let StreamSockets::Found(file) = found(1) else { panic!("no file") };
        assert!(file.check(Path::new("r.json"), stream).is_ok());
    }

    #[test]
    fn the_number_of_a_stream_stands_in_the_name_of_its_file() {
        for pattern in ["r-{dp_rank}.json", "r-{client}.json"] {
            assert_eq!(file_of(Path::new(pattern), 2), Path::new("r-2.json"));
        }
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
    fn a_running_stream_keeps_its_sockets_over_a_reload_so_that_a_restart_of_sglang_meanwhile_is_noticed() {
        let (before, after) = (config(&["gone", "runs", "waits"]), config(&["new", "runs", "waits"]));
        let waits = StreamSockets::Awaited(PathBuf::from("rendezvous.json.text"));
        let now = vec![found(2), found(2), found(2)];
        let kept = keep_running(&before, &[found(1), found(1), waits], &after, now.clone());
        let pids: Vec<u32> = kept.iter().filter_map(|sockets| Some(sockets.file()?.pid)).collect();
        assert_eq!(pids, [2, 1, 2]);
        let has_moved: Vec<bool> = kept.iter().zip(&now).map(|(kept, now)| kept.has_moved(now)).collect();
        assert_eq!(has_moved, [false, true, false]);
    }
}
