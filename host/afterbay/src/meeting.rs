//! Whose sockets each stream has: those of the configuration, or those that the connector has named in a rendezvous file.
//!
//! Owns which file is which stream's, and when a file says something new. What a file says is [`Rendezvous`]'s.

use crate::rendezvous::{Rendezvous, RendezvousError};
use afterbay_config as config;
use std::path::{Path, PathBuf};

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

fn file_of(pattern: &Path, rank: usize) -> PathBuf {
    PathBuf::from(pattern.to_string_lossy().replace("{dp_rank}", &rank.to_string()))
}
