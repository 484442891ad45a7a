//! Batches and options for the tests of an outbox.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use afterbay_batch::outbox::{FrameToSend, Options, When};
use afterbay_batch::{Content, JoinEnds};
use afterbay_journal::{FrameNo, SinkContent};
use afterbay_text::Vocabulary;
use afterbay_wire::{Barrier, Batch, DecodedFrame, Finish, Layouts, decode};
use bytes::Bytes;

pub fn batch_of(bytes: Bytes) -> Batch {
    match decode(bytes, &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(Barrier { kind, .. }) => panic!("{kind:?}"),
    }
}

/// The number of the frame that is sent unchanged. `None` for a composed frame.
pub fn source_of(sent: &FrameToSend) -> Option<u64> {
    match sent.content {
        SinkContent::Whole(FrameNo(frame)) => Some(frame),
        SinkContent::Rows(_) => None,
    }
}

/// The requests of a composed frame, each with the frame of its last row.
pub fn rows_of(sent: &FrameToSend) -> Vec<(u64, u64)> {
    match &sent.content {
        SinkContent::Whole(_) => Vec::new(),
        SinkContent::Rows(rows) => rows.iter().map(|(request, frame)| (request.0, frame.0)).collect(),
    }
}

thread_local! {
    static NUMBERS: RefCell<Numbers> = RefCell::default();
}

/// The rows of a batch, with numbers as a ledger gives them.
pub fn content(batch: Batch) -> Content {
    let requests = NUMBERS.with_borrow_mut(|numbers| numbers.of(&batch));
    Content::Rows { batch, requests }
}

/// Numbers requests in the order in which they begin. A rid that comes again after its last row has another number.
#[derive(Default)]
pub struct Numbers {
    live: BTreeMap<String, u64>,
    last: u64,
}

impl Numbers {
    pub fn of(&mut self, batch: &Batch) -> Box<[u64]> {
        let rows = batch.rids().zip(batch.finishes());
        let numbers = rows.map(|(rid, finish)| {
            let number = *self.live.entry(rid.to_owned()).or_insert_with(|| {
                self.last += 1;
                self.last
            });
            if finish != Finish::Running {
                self.live.remove(rid);
            }
            number
        });
        numbers.collect()
    }
}

/// Joins before a detokenizer. Token N of its tokenizer is the byte N.
pub fn bytes() -> JoinEnds {
    static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
        let (mut tokens, mut other) = (Vec::new(), 256_u32);
        for byte in 0..256_u32 {
            // The mapping of bytes to characters of GPT-2.
            let is_shown = matches!(byte, 33..=126 | 161..=172 | 174..=255);
            let code = if is_shown { byte } else { other };
            other += u32::from(!is_shown);
            tokens.push(format!("{:?}: {byte}", char::from_u32(code).unwrap().to_string()));
        }
        let decoder =
            r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}"#;
        let model = format!(r#"{{"type": "BPE", "merges": [], "vocab": {{{}}}}}"#, tokens.join(","));
        let tokenizer = format!(r#"{{"added_tokens": [], "decoder": {decoder}, "model": {model}}}"#);
        let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
        std::fs::write(file.path(), tokenizer).unwrap();
        Vocabulary::load(file.path()).unwrap()
    });
    JoinEnds::WhereTextIsWhole(VOCABULARY.clone())
}

pub fn options(when: When, ends: JoinEnds, max_rows: usize) -> Options {
    Options { when, joins: ends.into(), max_rows, max_frames: usize::MAX, max_bytes: u64::MAX }
}
