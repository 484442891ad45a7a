//! The record of a request: what the scheduler was asked for. The connector sends it on the scheduler's own connection, before the
//! request's first row. `docs/src/engines/introduction.md` has its form.
//!
//! A line of JSON, and behind it the ids of the prompt.

use std::fmt;

use afterbay_types::RecordDetail;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use thiserror::Error;

use crate::bounds::{MAX_PROMPT_BYTES, MAX_REQUEST_BYTES, MAX_RID_BYTES};

/// The beginning of every such message.
const HEAD: &[u8] = br#"{"afterbay":"request""#;

/// The beginning of the message that a request has ended.
const END_HEAD: &[u8] = br#"{"afterbay":"end""#;

/// The beginning of the message that a request's client has left.
const LEFT_HEAD: &[u8] = br#"{"afterbay":"left""#;

/// The record of what a scheduler was asked for. Fields that the engine did not say are `None` or empty.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct RequestRecord {
    /// The request's rid, as it is in its rows.
    pub rid: String,
    /// The time at which the scheduler got the request, in unix nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrived_unix_ns: Option<u64>,
    /// The name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// How tokens are chosen, and how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// The form that the answer must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<Grammar>,
    /// The log-probabilities that the client asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Logprobs>,
    /// The name of the LoRA adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<String>,
    /// The id of the engine's session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Whether further input may come for the request (vLLM): a row with a finish reason ends a turn only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resumable: bool,
    /// The milliseconds for which the engine goes on with the request after the client has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Whether each step of the engine sends a row. SGLang sends one every 50 tokens of a request that does not stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The priority, by the engine's own order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The data-parallel rank that has the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_parallel_rank: Option<u64>,
    /// The front end that waits for the request, as its rows name it, if several front ends share the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub front_end: Option<String>,
    /// The key by which a router chose the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// The place of the other engine, if prefill and decode are apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// The trace that the request is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// The inputs that are no text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub multimodal: Vec<Multimodal>,
    /// The fields that were left out because they are over a limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The parameters in effect that choose tokens and that the record has no field for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrecorded: Vec<String>,
    /// The ids of the prompt, 4 bytes little endian each. Empty if the record does not have them.
    #[serde(skip)]
    pub prompt_ids: Bytes,
}

/// How tokens are chosen, and how many.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are those of both engines' sampling parameters")]
pub struct Sampling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
}

/// The form that an answer must match.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Grammar {
    /// `json_schema`, `json_object`, `regex`, `ebnf`, `choice` or `structural_tag`.
    pub kind: String,
    /// The schema, the expression or the grammar.
    #[serde(default)]
    pub value: String,
    /// Whether the engine itself lets only matching tokens through.
    #[serde(default)]
    pub enforced: bool,
}

/// The log-probabilities that a client asked for.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Logprobs {
    /// Tokens for each place, beside the chosen one.
    pub top: u64,
    /// Whether the prompt's tokens have them, too.
    pub prompt: bool,
}

/// The engine that prefills a request for this one.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are those of the engine that has them")]
pub struct Bootstrap {
    pub host: Option<String>,
    pub port: Option<u64>,
    pub room: Option<u64>,
}

/// A trace in the form of [W3C](https://www.w3.org/TR/trace-context/).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are those of the headers")]
pub struct Trace {
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}

/// An input that is no text. Its content is not in the record.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Multimodal {
    /// `image`, `audio` or `video`.
    pub modality: String,
    /// The engine's own hash of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Bytes of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Tokens of the prompt that stand for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// The reason why a message is no record of a request that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestRecordError {
    /// A part of it is too long.
    #[error("record of a request has {bytes} bytes {of}, at most {max} are read")]
    TooLong {
        /// The part.
        of: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The rid is empty or too long.
    #[error("record of a request with a rid of {bytes} bytes, should be 1 to {MAX_RID_BYTES}")]
    Rid {
        /// The length.
        bytes: usize,
    },
    /// It is not JSON of the right form.
    #[error("record of a request cannot be read: {0}")]
    Json(String),
    /// There are not as many ids as it says.
    #[error("record of a request has {bytes} bytes of ids, {tokens} tokens of the prompt have 4 each")]
    Ids {
        /// The bytes.
        bytes: usize,
        /// The tokens.
        tokens: u64,
    },
}

/// Whether the frame says that a request has ended: the scheduler has told the front end, and no row follows.
pub(crate) fn is_end(frame: &[u8]) -> bool {
    frame.starts_with(END_HEAD)
}

/// Whether the frame says that the client of a request with a lease has left: the engine goes on with the request.
pub(crate) fn is_left(frame: &[u8]) -> bool {
    frame.starts_with(LEFT_HEAD)
}

/// The rid of the request that has ended, or whose client has left.
pub(crate) fn read_rid(frame: &Bytes) -> Result<String, RequestRecordError> {
    RequestRecord::read(frame).map(|message| message.rid)
}

/// Whether the frame is the record of a request.
pub(crate) fn is_record(frame: &[u8]) -> bool {
    frame.starts_with(HEAD)
}

/// The end of a record's line of JSON.
fn line_end(frame: &[u8]) -> usize {
    frame.iter().position(|byte| *byte == b'\n').unwrap_or(frame.len())
}

impl RequestRecord {
    /// The fields that are attributes of the request.
    pub const ATTRIBUTES: [&str; 8] = [
        "lora",
        "session",
        RequestRecord::RESUMABLE,
        RequestRecord::LEASE,
        RequestRecord::CLIENT_LEFT,
        RequestRecord::ENGINE_DIED,
        RequestRecord::MIGRATED_AT,
        RequestRecord::NOT_MIGRATED,
    ];
    /// The attribute with the time for which the engine goes on after the client has left, like `60s`.
    pub const LEASE: &str = "lease";
    /// The attribute with the time at which the client of a request with a lease left, in unix milliseconds. It is in no record.
    pub const CLIENT_LEFT: &str = "client_left";
    /// The attribute with the time at which the request's engine was found to have died, in unix milliseconds. It is in no record.
    pub const ENGINE_DIED: &str = "engine_died";
    /// The attribute with the tokens that the request had when the next engine went on with it. It is in no record.
    pub const MIGRATED_AT: &str = "migrated_at";
    /// The attribute with the reason why no engine went on with the request. It is in no record.
    pub const NOT_MIGRATED: &str = "not_migrated";
    /// The attribute of a request of which each turn ends with a row with a finish reason.
    pub const RESUMABLE: &str = "resumable";

    /// Reads the record that a frame is; `None` for another frame.
    pub fn of_frame(frame: &Bytes) -> Option<Result<RequestRecord, RequestRecordError>> {
        is_record(frame).then(|| RequestRecord::read(frame))
    }

    /// Reads a record.
    pub fn read(frame: &Bytes) -> Result<RequestRecord, RequestRecordError> {
        let end = line_end(frame);
        let (line, ids) = (&frame[..end], frame.slice(frame.len().min(end + 1)..));
        let too_long = |of, bytes, max| Err(RequestRecordError::TooLong { of, bytes, max });
        match (line.len(), ids.len()) {
            (bytes, _) if bytes > MAX_REQUEST_BYTES => return too_long("of JSON", bytes, MAX_REQUEST_BYTES),
            (_, bytes) if bytes > MAX_PROMPT_BYTES => return too_long("of ids", bytes, MAX_PROMPT_BYTES),
            _ => {}
        }
        let read: RequestRecord =
            serde_json::from_slice(line).map_err(|error| RequestRecordError::Json(error.to_string()))?;
        if !(1..=MAX_RID_BYTES).contains(&read.rid.len()) {
            return Err(RequestRecordError::Rid { bytes: read.rid.len() });
        }
        let tokens = read.prompt_tokens.unwrap_or(0);
        if !ids.is_empty() && Some(ids.len() as u64) != tokens.checked_mul(4) {
            return Err(RequestRecordError::Ids { bytes: ids.len(), tokens });
        }
        Ok(RequestRecord { prompt_ids: ids, ..read })
    }

    /// The ids of the prompt; `None` if the record does not have them.
    pub fn prompt_ids(&self) -> Option<impl ExactSizeIterator<Item = u32> + Clone + '_> {
        let ids =
            || self.prompt_ids.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]));
        (!self.prompt_ids.is_empty() || self.prompt_tokens == Some(0)).then(ids)
    }

    /// The attributes of the request: the fields among [`RequestRecord::ATTRIBUTES`].
    pub fn attributes(&self) -> Vec<(String, String)> {
        let resumable = self.resumable.then(|| "true".to_owned());
        let lease = self.lease_ms.map(|ms| match ms % 1000 {
            0 => format!("{}s", ms / 1000),
            _ => format!("{ms}ms"),
        });
        let all = [
            ("lora", self.lora.clone()),
            ("session", self.session.clone()),
            (RequestRecord::RESUMABLE, resumable),
            (RequestRecord::LEASE, lease),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// The record with these ids of the prompt.
    pub fn with_prompt(self, ids: &[u32]) -> RequestRecord {
        let prompt_ids = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        RequestRecord { prompt_tokens: Some(ids.len() as u64), prompt_ids, ..self }
    }

    /// All but the prompt's ids, as a JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The record as a frame.
    pub fn to_frame(&self) -> Bytes {
        let fields = serde_json::to_value(self).unwrap_or_default();
        let Json::Object(fields) = fields else { return Bytes::new() };
        let mut frame = BytesMut::from(HEAD);
        // The head has no end, and the rid comes first.
        put_field(&mut frame, "rid", &fields["rid"]);
        for (name, value) in fields.iter().filter(|(name, _)| *name != "rid") {
            put_field(&mut frame, name, value);
        }
        frame.put_slice(b"}\n");
        frame.put_slice(&self.prompt_ids);
        frame.freeze()
    }

    /// Cuts a record to this detail. Other frames stay as they are.
    pub fn reduce(frame: Bytes, detail: RecordDetail) -> Bytes {
        match detail {
            _ if !is_record(&frame) => frame,
            RecordDetail::Full => frame,
            RecordDetail::WithoutIds => frame.slice(..frame.len().min(line_end(&frame) + 1)),
            RecordDetail::None => match RequestRecord::read(&frame) {
                Ok(RequestRecord { rid, lora, session, resumable, lease_ms, .. }) => {
                    RequestRecord { rid, lora, session, resumable, lease_ms, ..RequestRecord::default() }
                        .to_frame()
                }
                // Nothing of it is kept, because nobody knows where its parts are.
                Err(_) => Bytes::from_static(br#"{"afterbay":"request"}"#),
            },
        }
    }

    /// The frame of a record without all that was asked for, as long as before. The rid and the count of tokens stay.
    pub(crate) fn erase(frame: &Bytes) -> Bytes {
        let end = line_end(frame);
        let Ok(RequestRecord { rid, prompt_tokens, .. }) = RequestRecord::read(frame) else {
            return BytesMut::zeroed(frame.len()).freeze();
        };
        let kept = RequestRecord { rid, prompt_tokens, ..RequestRecord::default() }.to_frame();
        let mut erased = BytesMut::from(&kept[..(kept.len() - 1).min(end)]);
        erased.resize(end, b' ');
        erased.extend_from_slice(&frame[end..frame.len().min(end + 1)]);
        erased.resize(frame.len(), 0);
        erased.freeze()
    }
}

fn put_field(frame: &mut BytesMut, name: &str, value: &Json) {
    frame.put_slice(format!(",\"{name}\":{value}").as_bytes());
}

impl fmt::Display for RequestRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {:?}", self.rid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RequestRecord {
        RequestRecord {
            rid: "r-\u{e9}".into(),
            arrived_unix_ns: Some(7),
            prompt_tokens: Some(3),
            sampling: Some(Sampling { stop: vec!["\n".into()], top_p: Some(0.5), ..Sampling::default() }),
            lora: Some("sql".into()),
            resumable: true,
            lease_ms: Some(1500),
            ..RequestRecord::default()
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let frame = record().with_prompt(&[1, 70_000, u32::MAX]).to_frame();
        assert!(frame.starts_with("{\"afterbay\":\"request\",\"rid\":\"r-\u{e9}\",".as_bytes()));
        let read = RequestRecord::read(&frame).unwrap();
        assert_eq!(read.prompt_ids().unwrap().collect::<Vec<_>>(), [1, 70_000, u32::MAX]);
        assert_eq!(RequestRecord { prompt_ids: Bytes::new(), ..read }, record());
        assert_eq!(RequestRecord::of_frame(&Bytes::from_static(b"\x81")), None);
    }

    #[test]
    fn a_lease_is_an_attribute_in_the_form_of_the_header() {
        let lease = |ms| RequestRecord { lease_ms: Some(ms), ..RequestRecord::default() }.attributes();
        assert_eq!(lease(60_000), [("lease".to_owned(), "60s".to_owned())]);
        assert_eq!(lease(1500), [("lease".to_owned(), "1500ms".to_owned())]);
    }

    #[test]
    fn a_record_over_a_limit_or_with_other_ids_than_it_says_is_refused_with_both_numbers() {
        let read = |frame: Vec<u8>| RequestRecord::read(&frame.into()).unwrap_err().to_string();
        let frame = RequestRecord { prompt_tokens: Some(3), ..record().with_prompt(&[1, 2]) }.to_frame();
        assert_eq!(
            read(frame.to_vec()),
            "record of a request has 8 bytes of ids, 3 tokens of the prompt have 4 each"
        );
        let long = [&frame[..], &vec![0; MAX_PROMPT_BYTES]].concat();
        assert_eq!(read(long), "record of a request has 1048584 bytes of ids, at most 1048576 are read");
        let long = vec![b' '; MAX_REQUEST_BYTES + 1];
        assert_eq!(read(long), "record of a request has 65537 bytes of JSON, at most 65536 are read");
        let without = |rid: &str| format!("{{\"afterbay\":\"request\",\"rid\":\"{rid}\"}}").into_bytes();
        assert_eq!(read(without("")), "record of a request with a rid of 0 bytes, should be 1 to 4096");
        assert!(
            read(b"{\"afterbay\":\"request\",7}".to_vec()).contains("cannot be read: key must be a string")
        );
    }

    #[test]
    fn a_reduced_record_has_the_rid_and_what_is_kept() {
        let frame = record().with_prompt(&[1, 2, 3]).to_frame();
        assert_eq!(RequestRecord::reduce(frame.clone(), RecordDetail::Full), frame);
        let without_ids =
            RequestRecord::read(&RequestRecord::reduce(frame.clone(), RecordDetail::WithoutIds)).unwrap();
        assert_eq!((without_ids.clone(), without_ids.prompt_ids().is_none()), (record(), true));
        let none = RequestRecord::reduce(frame, RecordDetail::None);
        assert_eq!(
            none,
            "{\"afterbay\":\"request\",\"rid\":\"r-\u{e9}\",\"lease_ms\":1500,\"lora\":\"sql\",\"resumable\":true}\n"
        );
        let other = Bytes::from_static(b"{\"afterbay\":\"introduction\"}");
        assert_eq!(RequestRecord::reduce(other.clone(), RecordDetail::None), other);
        let unreadable = RequestRecord::reduce(
            Bytes::from_static(b"{\"afterbay\":\"request\",secret"),
            RecordDetail::None,
        );
        assert!(!unreadable.windows(6).any(|bytes| bytes == b"secret"));
    }

    #[test]
    fn an_erased_record_is_as_long_and_says_the_rid_and_the_count_alone() {
        for frame in [record().with_prompt(&[1, 2, 3]).to_frame(), record().to_frame()] {
            let erased = RequestRecord::erase(&frame);
            assert_eq!(erased.len(), frame.len());
            let read = RequestRecord::read(&erased).unwrap();
            assert!(read.prompt_ids().is_none_or(|mut ids| ids.all(|id| id == 0)));
            let kept =
                RequestRecord { rid: record().rid, prompt_tokens: Some(3), ..RequestRecord::default() };
            assert_eq!(RequestRecord { prompt_ids: Bytes::new(), ..read }, kept);
        }
    }
}
