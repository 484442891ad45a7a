//! Erases rows in stored frames, for [`JournalDirectory::erase`](afterbay_journal::JournalDirectory::erase), and the report of
//! an erasure as JSON.

use crate::time::json_time;
use afterbay_journal::reader::Erasure;
use afterbay_journal::{EraseRows, ErasedRequests, RewrittenFrame};
use afterbay_wire::{DecodedFrame, Decoder, EraseError, Layouts};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Erases rows in the frames of all engines.
pub struct FrameEraser<'a> {
    /// The layouts of a stream's msgpack frames.
    layouts: Box<dyn Fn(&str) -> Layouts + Send + 'a>,
    streams: HashMap<String, StreamDecoder>,
}

/// The decoder of a stream's frames.
struct StreamDecoder {
    decoder: Decoder,
    /// The last frame. A seal asks for erasures of several parts of one frame.
    last: Option<(Bytes, DecodedFrame)>,
}

impl StreamDecoder {
    fn erase(
        &mut self,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
        is_checked: bool,
    ) -> Result<RewrittenFrame, EraseError> {
        // The bytes of a frame that is held do not change, and no other frame is at their place.
        let place = |frame: &Bytes| (frame.as_ptr(), frame.len());
        let last = self.last.take().filter(|(last, _)| place(last) == place(frame));
        let (frame, decoded) = last.unwrap_or_else(|| (frame.clone(), self.decoder.decode(frame.clone())));
        let erased = Decoder::erase_decoded(&frame, &decoded, is_erased);
        if is_checked && let Ok(erased) = &erased {
            self.decoder.check_erased(&decoded, erased)?;
        }
        self.last = Some((frame, decoded));
        erased.map(|erased| RewrittenFrame { bytes: erased.bytes, left: erased.left })
    }
}

impl<'a> FrameEraser<'a> {
    /// An eraser that reads the msgpack frames of a stream with these layouts.
    pub fn new(layouts: impl Fn(&str) -> Layouts + Send + 'a) -> FrameEraser<'a> {
        FrameEraser { layouts: Box::new(layouts), streams: HashMap::new() }
    }

    fn decoder(&mut self, stream: &str) -> &mut StreamDecoder {
        let decoder = || StreamDecoder { decoder: Decoder::new((self.layouts)(stream)), last: None };
        self.streams.entry(stream.to_owned()).or_insert_with(decoder)
    }
}

impl EraseRows for FrameEraser<'_> {
    fn erase(
        &mut self,
        stream: &str,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
    ) -> Result<RewrittenFrame, String> {
        self.decoder(stream).erase(frame, is_erased, true).map_err(|error| error.to_string())
    }

    fn erase_part(
        &mut self,
        stream: &str,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
    ) -> Result<RewrittenFrame, String> {
        self.decoder(stream).erase(frame, is_erased, false).map_err(|error| error.to_string())
    }
}

/// The report of an erasure. `is_complete`: no frame may still hold content of the request. `followers` are those that have ever read
/// the journal: all but the record of usage have copies of tokens.
pub fn report(rid: &str, erased: &[ErasedRequests], followers: &[String]) -> Value {
    let copies: Vec<&String> = followers.iter().filter(|follower| *follower != "usage").collect();
    let sum = |of: fn(&ErasedRequests) -> u64| erased.iter().map(of).sum::<u64>();
    json!({
        "rid": rid,
        "time": erased.first().and_then(|it| json_time(it.unix_ns)),
        "rows": sum(|it| it.rows),
        "tokens": sum(|it| it.tokens),
        "segments": sum(|it| it.segments),
        "is_complete": sum(|it| it.left.count) == 0,
        "streams": erased,
        "copies": copies,
    })
}

/// An erasure as JSON: its time, and who erased.
pub fn erasure(erasure: &Erasure) -> Value {
    json!({"time": json_time(erasure.unix_ns), "by": erasure.by.to_string()})
}
