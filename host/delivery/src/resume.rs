//! What an earlier run left: which rows the reader has, and which are sent again out of the journal.
//!
//! Owns nothing but what the journal says of the sink. Where the last run was killed, the reader's own count settles what
//! became of the frames it was being sent; without a count they pass as taken, and are told as unconfirmed.

use crate::sender::SinkSender;
use afterbay_batch::FrameDecoder;
use afterbay_journal::{
    BacklogItem, Credit, FrameNo, JournalWriter, RecoveredStream, RequestNo, SinkContent, SinkProgress,
};
use afterbay_outbox::Content;
use afterbay_sockets::bounds::CREDIT_STALL_MAX;
use afterbay_sockets::credit::{Page, PageReader, PageStatus};
use afterbay_wire::Batch;
use std::path::Path;
use std::time::{Duration, Instant};

/// The reader's count must stand still for so long before a frame that was cut off between the kernel's taking it and the
/// journal's word of that never arrived. Seldom waited for, and so long enough for a reader that is only slow.
const QUIET: Duration = Duration::from_secs(5);

/// What a sink has of the frames of an earlier run.
pub struct Resume {
    sink: SinkProgress,
    /// The last frame of the earlier run.
    through: FrameNo,
    /// Frames of which nobody can say whether the reader has them, and which pass as taken.
    unconfirmed: u64,
    /// After a panic: what left up to this number is on its way still.
    on_its_way: u64,
}

/// What the reader's count says.
pub enum Count {
    /// So many counted frames were finished since the journal's word, and where it stands now.
    Since(u64, Credit),
    Unknown,
}

impl Resume {
    /// Settles what the reader has of what it was sent, by what it counts, and tells the journal.
    pub fn new(
        known: &SinkProgress,
        recovered: &RecoveredStream,
        count: Count,
        writer: &mut JournalWriter,
        decode: &mut FrameDecoder,
    ) -> Resume {
        if recovered.unrecorded && !is_behind_its_record(known, &count, writer, decode) {
            return Resume::unrecorded(known, recovered, writer);
        }
        let (sequence, credit, unconfirmed) = match count {
            Count::Unknown => (known.last_sent(), None, known.sent().len() as u64),
            Count::Since(finished, now) => {
                let mut left = finished;
                let mut sequence = known.sequence();
                for (sent, content) in known.sent() {
                    let counted = is_counted(content, writer, decode);
                    if counted && left == 0 {
                        break;
                    }
                    left -= u64::from(counted);
                    sequence = sent;
                }
                (sequence, Some(now), 0)
            }
        };
        let name = known.name();
        // In one record: what was counted now must not be counted again by a next start.
        writer.resume(name, sequence, credit);
        // Where it cannot be written the disk is failing, which `append` tells.
        let _written = writer.flush();
        let sink = writer.known_sink(name).unwrap_or(known).clone();
        Resume { sink, through: recovered.last_frame, unconfirmed, on_its_way: 0 }
    }

    /// Frames may have left of which no record says so: of none of them can be said whether the reader has it, and none is sent
    /// again.
    fn unrecorded(known: &SinkProgress, recovered: &RecoveredStream, writer: &mut JournalWriter) -> Resume {
        let (name, through) = (known.name(), recovered.last_frame);
        let unconfirmed = known.open_frames(through);
        writer.resume(name, known.last_sent(), None);
        writer.taken_sent(name, known.last_sent(), through, None);
        // Where it cannot be written, the next start knows no more than this one.
        let _written = writer.flush();
        let sink = writer.known_sink(name).unwrap_or(known).clone();
        Resume { sink, through, unconfirmed, on_its_way: 0 }
    }

    /// After a panic: what was handed to the socket is on its way, and none of it is to be sent again.
    pub fn living(
        name: &str,
        recovered: &RecoveredStream,
        send: &SinkSender,
        writer: &mut JournalWriter,
    ) -> Resume {
        let (taken, last) = (send.socket().taken(), send.last());
        let known = writer.known_sink(name).cloned().unwrap_or_default();
        let credit = send.position();
        writer.resume(name, taken, credit);
        for (sequence, content) in known.sent().filter(|(sequence, _)| (taken + 1..=last).contains(sequence))
        {
            // Refused only where far more is ahead than could be when it left.
            let _told = writer.sent(name, sequence, content.clone());
        }
        let unconfirmed = if recovered.unrecorded { known.open_frames(recovered.last_frame) } else { 0 };
        if recovered.unrecorded {
            writer.taken_sent(name, last, recovered.last_frame, credit);
        }
        let mut sink = writer.known_sink(name).cloned().unwrap_or(known);
        sink.take(last);
        Resume { sink, through: recovered.last_frame, unconfirmed, on_its_way: last }
    }

    /// For a reader that is another than the earlier run's: it gets nothing of that.
    pub fn of_another(name: &str, through: FrameNo) -> Resume {
        Resume { sink: SinkProgress::up_to(name, through), through, unconfirmed: 0, on_its_way: 0 }
    }

    /// The last frame that left.
    pub fn last_sent(&self) -> u64 {
        self.sink.last_sent()
    }

    /// Everything up to this frame is done with.
    pub fn done(&self) -> FrameNo {
        self.sink.through()
    }

    /// The last frame of the earlier run.
    pub fn through(&self) -> FrameNo {
        self.through
    }

    /// A frame of the earlier run is done with only when what left up to this number is taken.
    pub fn on_its_way(&self) -> u64 {
        self.on_its_way
    }

    /// Frames of which nobody can say whether the reader has them. They are not sent again.
    pub fn unconfirmed(&self) -> u64 {
        self.unconfirmed
    }

    /// Nothing of this frame is left for the sink.
    pub fn has_taken(&self, frame: FrameNo) -> bool {
        self.sink.has_taken(frame)
    }

    /// What of its share of a frame the sink does not have.
    pub fn left(&self, frame: FrameNo, share: Content) -> Content {
        match share {
            Content::Rows { batch, requests } => self.rows(frame, batch, requests),
            _ if self.sink.has_taken(frame) => Content::Nothing,
            share => share,
        }
    }

    fn rows(&self, frame: FrameNo, batch: Batch, requests: Box<[u64]>) -> Content {
        let is_left = |row: &u32| {
            let request = requests.get(*row as usize).copied().unwrap_or(0);
            !self.sink.has_taken_row(frame, RequestNo(request))
        };
        let left: Vec<u32> = (0..batch.rows()).filter(is_left).collect();
        if left.is_empty() {
            return Content::Nothing;
        }
        if left.len() == batch.rows() as usize {
            return Content::Rows { batch, requests };
        }
        let some = left.iter().map(|row| requests.get(*row as usize).copied().unwrap_or(0)).collect();
        match batch.take(&left) {
            Ok(batch) => Content::Rows { batch, requests: some },
            // Some of its rows left, so it could be taken apart before.
            Err(_) => Content::Whole { bytes: batch.bytes().clone(), counted: true, rows: batch.rows() },
        }
    }
}

/// Whether the reader has not even finished what is on record: then nothing behind that has reached it.
fn is_behind_its_record(
    known: &SinkProgress,
    count: &Count,
    writer: &JournalWriter,
    decode: &mut FrameDecoder,
) -> bool {
    let Count::Since(finished, _) = count else { return false };
    let sent = known.sent().filter(|(_, content)| is_counted(content, writer, decode)).count();
    *finished < sent as u64
}

fn is_counted(sent: &SinkContent<'_>, writer: &JournalWriter, decode: &mut FrameDecoder) -> bool {
    let SinkContent::Whole(frame) = *sent else { return true };
    match writer.backlog(frame).next() {
        Ok(Some(BacklogItem::Frame(frame))) => decode.decode_bytes(frame.bytes).counted(),
        _ => true,
    }
}

/// What a sink was sent and has not taken as far as the journal knows.
pub struct Out<'a> {
    known: &'a SinkProgress,
    page: &'a Path,
    /// The frames of these that readers count.
    sent: u64,
    /// So many of them the kernel had: a reader that lives has them.
    handed: u64,
}

impl<'a> Out<'a> {
    /// `None` where there is nothing to be asked, or nobody to ask.
    pub fn of(
        known: &'a SinkProgress,
        page: Option<&'a Path>,
        recovered: &RecoveredStream,
        writer: &JournalWriter,
        decode: &mut FrameDecoder,
    ) -> Option<Out<'a>> {
        let page = page?;
        if known.sent().len() == 0 && known.through() >= recovered.last_frame {
            return None;
        }
        let generation = known.credit().map(|credit| credit.generation);
        let handed = known.handed().filter(|handed| Some(handed.generation) == generation);
        let mut out = Out { known, page, sent: 0, handed: 0 };
        for (sequence, content) in known.sent() {
            if is_counted(content, writer, decode) {
                out.sent += 1;
                out.handed += u64::from(handed.is_some_and(|handed| sequence <= handed.sequence));
            }
        }
        Some(out)
    }

    /// The frames that are waited for.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

/// What the count of each sink's reader says, where it matters. Waits while they still count, for all together.
pub fn counts(sinks: &[Option<Out<'_>>]) -> Vec<Count> {
    std::thread::scope(|scope| {
        let counting = sinks.iter().map(|out| out.as_ref().map(|out| scope.spawn(|| count(out))));
        let counting: Vec<_> = counting.collect();
        let counts = counting.into_iter().map(|counts| counts.and_then(|counts| counts.join().ok()));
        counts.map(|count| count.unwrap_or(Count::Unknown)).collect()
    })
}

/// How many frames the reader has finished since the journal's word of it, once it has finished all it was sent, or all
/// that the kernel had for it and stood still for so long then that the rest never arrived.
fn count(out: &Out<'_>) -> Count {
    let Some(base) = out.known.credit() else { return Count::Unknown };
    let at = |page: &Page| Credit { generation: page.generation, sent: page.count };
    let mut reader = PageReader::new(out.page);
    let mut last = (None, Instant::now());
    loop {
        let now = Instant::now();
        match reader.look() {
            PageStatus::Page(page) if page.generation == base.generation => {
                if last.0 != Some(page.count) {
                    last = (Some(page.count), now);
                }
                let finished = page.count.saturating_sub(base.sent);
                let is_quiet = finished >= out.handed && now >= last.1 + QUIET;
                if finished >= out.sent || is_quiet {
                    return Count::Since(finished, at(&page));
                }
                // It has frames that it does not finish, and may some time.
                if now >= last.1 + CREDIT_STALL_MAX {
                    return Count::Unknown;
                }
            }
            // That reader is gone: its last word is in the page.
            PageStatus::Page(page) if page.last_generation == base.generation => {
                return Count::Since(page.last_count.saturating_sub(base.sent), at(&page));
            }
            PageStatus::Changing => {}
            _ => return Count::Unknown,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
