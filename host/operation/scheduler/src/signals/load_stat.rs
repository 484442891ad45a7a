//! SGLang's LoadStat publisher (0.5.19 and later; sglang 0.5.23,
//! `srt/managers/scheduler_components/load_publisher.py`). A message has the frame `b"load"`, a big-endian
//! i64 sequence number from 0 on, and a msgpack array. Only this file names zeromq.
//!
//! A changed load arrives at once, an unchanged one at least every second. A slow subscriber loses messages
//! (the publisher's high-water mark is 8), which newer ones supersede.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use tokio::time::{sleep, timeout};
use zeromq::{Socket, SocketEvent, SocketRecv, SubSocket, ZmqMessage};

use crate::signals::bounds::{
    CONNECT_TIMEOUT, LOAD_STAT_BYTES_MAX, LOAD_STAT_TURN_MAX, RECONNECT_MAX, RECONNECT_MIN,
};
use crate::signals::hub::{Hub, Moment, ReadFailure};
use crate::signals::load_snapshot::Number;
use crate::signals::snapshot::SourceKind;
use crate::signals::values::LoadValues;

const TOPIC: &str = "load";
const TAG: &str = "LoadStat";

/// The fields of the array that are read. SGLang only appends fields, and guarantees the first six to
/// routers.
#[derive(Debug)]
struct LoadStat {
    values: LoadValues,
    dp_rank: Option<u64>,
}

impl<'de> Deserialize<'de> for LoadStat {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Array;
        impl<'de> Visitor<'de> for Array {
            type Value = LoadStat;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the array of a LoadStat")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LoadStat, A::Error> {
                let tag: String = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
                if tag != TAG {
                    return Err(A::Error::custom(format!("the tag is {tag:?}, expected {TAG:?}")));
                }
                let mut required = || {
                    seq.next_element::<Number>()?.ok_or_else(|| A::Error::custom("the array is too short"))
                };
                let [running, waiting, used, capacity] = [required()?, required()?, required()?, required()?];
                let mut optional = || seq.next_element::<Number>().map(Option::unwrap_or_default);
                let [dp_rank, uncached, total, running_max] =
                    [optional()?, optional()?, optional()?, optional()?];
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                let values = LoadValues {
                    num_running_reqs: running.count(),
                    num_waiting_reqs: waiting.count(),
                    num_waiting_uncached_tokens: uncached.count(),
                    num_used_tokens: used.count(),
                    num_total_tokens: total.count(),
                    max_total_num_tokens: capacity.count().filter(|value| *value > 0),
                    max_running_requests: running_max.count().filter(|value| *value > 0),
                    ..LoadValues::default()
                };
                Ok(LoadStat { values, dp_rank: dp_rank.count() })
            }
        }
        from.deserialize_seq(Array)
    }
}

/// Decodes a message into its sequence number and its values.
fn decode<'a>(
    frames: impl ExactSizeIterator<Item = &'a [u8]>,
    dp_rank: u32,
) -> Result<(i64, LoadValues), ReadFailure> {
    let invalid = |why: String| Err(ReadFailure::Invalid(why));
    let count = frames.len();
    let frames: Vec<&[u8]> = frames.take(3).collect();
    let (&[topic, seq, payload], 3) = (frames.as_slice(), count) else {
        return invalid(format!("a message has {count} frames, expected 3"));
    };
    if topic != TOPIC.as_bytes() {
        return invalid(format!(
            "a message's topic is {:?}, expected {TOPIC:?}",
            topic.escape_ascii().to_string()
        ));
    }
    let Ok(seq) = seq.try_into().map(i64::from_be_bytes) else {
        return invalid(format!("a sequence number has {} bytes, expected 8", seq.len()));
    };
    if payload.len() > LOAD_STAT_BYTES_MAX {
        return invalid(format!("a message has {} bytes, at most {LOAD_STAT_BYTES_MAX}", payload.len()));
    }
    let stat: LoadStat = match rmp_serde::from_slice(payload) {
        Ok(stat) => stat,
        Err(error) => return invalid(format!("a message is not a LoadStat: {error}")),
    };
    if let Some(found) = stat.dp_rank.filter(|found| *found != u64::from(dp_rank)) {
        return invalid(format!("the publisher is of dp rank {found}, expected {dp_rank}"));
    }
    Ok((seq, stat.values))
}

/// The last sequence number.
#[derive(Default)]
struct Sequence(Option<i64>);

impl Sequence {
    /// The number of messages lost before this one. A number that is not higher means that the publisher
    /// restarted.
    fn missed(&mut self, seq: i64) -> u64 {
        let before = self.0.replace(seq);
        before.filter(|before| seq > *before).map_or(0, |before| seq.abs_diff(before) - 1)
    }
}

/// Follows a publisher forever: connects, reads and reconnects. May be dropped at any await.
pub(crate) async fn follow(endpoint: &str, dp_rank: u32, silent_after: Duration, hub: &RefCell<Hub>) {
    let mut sequence = Sequence::default();
    let mut wait = RECONNECT_MIN;
    loop {
        let why = match connect(endpoint).await {
            Ok(socket) => {
                wait = RECONNECT_MIN;
                read(socket, dp_rank, silent_after, &mut sequence, hub).await
            }
            Err(why) => why,
        };
        hub.borrow_mut().failure(SourceKind::LoadStat, ReadFailure::Unavailable(why), Moment::now());
        sleep(wait).await;
        wait = (wait * 2).min(RECONNECT_MAX);
    }
}

async fn connect(endpoint: &str) -> Result<SubSocket, String> {
    let mut socket = SubSocket::new();
    let connecting = async {
        socket.subscribe(TOPIC).await?;
        // `connect` retries by itself while nobody listens.
        socket.connect(endpoint).await
    };
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(())) => Ok(socket),
        Ok(Err(error)) => Err(format!("cannot connect: {error}")),
        Err(_) => Err(format!("no publisher answers within {} s", CONNECT_TIMEOUT.as_secs())),
    }
}

/// Reads until the connection ends. Returns the reason.
async fn read(
    mut socket: SubSocket,
    dp_rank: u32,
    silent_after: Duration,
    sequence: &mut Sequence,
    hub: &RefCell<Hub>,
) -> String {
    let mut events = socket.monitor();
    let mut turn = 0;
    loop {
        let message = tokio::select! {
            message = timeout(silent_after, socket.recv()) => message,
            event = events.recv() => match event {
                // The socket would reconnect by itself, but waits up to 30 s.
                Ok(SocketEvent::Disconnected(_)) | Err(_) => {
                    return "the publisher closed the connection".to_owned();
                }
                Ok(_) => continue,
            },
        };
        match message {
            Ok(Ok(message)) => take(&message, dp_rank, sequence, hub),
            Ok(Err(error)) => return format!("the connection broke: {error}"),
            // A live publisher sends every second. A half-open connection would stay silent forever.
            Err(_) => return format!("no message for {:.1} s", silent_after.as_secs_f64()),
        }
        turn += 1;
        if turn >= LOAD_STAT_TURN_MAX {
            turn = 0;
            tokio::task::yield_now().await;
        }
    }
}

fn take(message: &ZmqMessage, dp_rank: u32, sequence: &mut Sequence, hub: &RefCell<Hub>) {
    let frames: Vec<&[u8]> = message.iter().map(AsRef::as_ref).collect();
    let (mut hub, now) = (hub.borrow_mut(), Moment::now());
    match decode(frames.into_iter(), dp_rank) {
        Ok((seq, values)) => {
            let missed = sequence.missed(seq);
            if missed > 0 {
                hub.missed(SourceKind::LoadStat, missed);
            }
            hub.reading(SourceKind::LoadStat, values, now.unix_ns, now);
        }
        Err(failure) => hub.failure(SourceKind::LoadStat, failure, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(frames: &[&[u8]], dp_rank: u32) -> Result<(i64, LoadValues), ReadFailure> {
        decode(frames.iter().copied(), dp_rank)
    }

    fn packed(array: serde_json::Value) -> Vec<u8> {
        rmp_serde::to_vec(&array).unwrap()
    }

    #[test]
    fn four_numbers_are_required_and_further_ones_are_optional() {
        let short = packed(serde_json::json!(["LoadStat", 1, 2, 3, 0]));
        let (seq, values) = message(&[b"load", &7i64.to_be_bytes(), &short], 4).unwrap();
        assert_eq!((seq, values.num_running_reqs, values.num_waiting_reqs), (7, Some(1), Some(2)));
        assert_eq!(
            (values.num_used_tokens, values.max_total_num_tokens, values.num_total_tokens),
            (Some(3), None, None)
        );
        let long = packed(serde_json::json!(["LoadStat", 1, 2, 3, 4, null, 6, 7, 8, 9, 10, "new", [1]]));
        let (_, values) = message(&[b"load", &0i64.to_be_bytes(), &long], 4).unwrap();
        assert_eq!((values.num_total_tokens, values.max_running_requests), (Some(7), Some(8)));
    }

    #[test]
    fn an_invalid_message_is_refused_with_a_reason() {
        let seq = &0i64.to_be_bytes()[..];
        let stat = packed(serde_json::json!(["LoadStat", 1, 2, 3, 4, 1]));
        let other = packed(serde_json::json!(["KvStat", 1, 2, 3, 4]));
        let short = packed(serde_json::json!(["LoadStat", 1, 2]));
        let long = vec![0; LOAD_STAT_BYTES_MAX + 1];
        let cases: [(&[&[u8]], &str); 8] = [
            (&[b"load", seq], "a message has 2 frames, expected 3"),
            (&[b"load", seq, &stat, &stat], "a message has 4 frames, expected 3"),
            (&[b"loads", seq, &stat], "a message's topic is \"loads\", expected \"load\""),
            (&[b"load", b"1", &stat], "a sequence number has 1 bytes, expected 8"),
            (&[b"load", seq, &stat], "the publisher is of dp rank 1, expected 0"),
            (&[b"load", seq, &other], "the tag is \"KvStat\", expected \"LoadStat\""),
            (&[b"load", seq, &short], "the array is too short"),
            (&[b"load", seq, &long], "a message has 4097 bytes, at most 4096"),
        ];
        for (frames, expected) in cases {
            let Err(ReadFailure::Invalid(why)) = message(frames, 0) else { panic!("{expected}") };
            assert!(why.contains(expected), "{why:?}, expected {expected:?}");
        }
    }

    #[test]
    fn a_gap_in_the_sequence_counts_and_a_restart_does_not() {
        let mut sequence = Sequence::default();
        let seqs = [5, 6, 9, 9, 0, 1, i64::MIN, i64::MAX];
        let missed: Vec<u64> = seqs.map(|seq| sequence.missed(seq)).into();
        assert_eq!(missed, [0, 0, 2, 0, 0, 0, 0, u64::MAX - 1]);
    }
}
