//! The state of a sink after a restart or a panic: which rows the reader has, and which the journal has to send again.
//!
//! If the last run was killed, the reader's own count shows which of the sent frames arrived. Without a count, these frames
//! pass as taken, and an event reports them as unconfirmed.

use crate::delivery::sender::SinkSender;
use afterbay_batch::{Content, FrameDecoder};
use afterbay_journal::{
    BacklogItem, Credit, FrameNo, JournalWriter, RecoveredStream, RequestNo, SinkContent, SinkProgress,
};
use afterbay_sockets::bounds::{CREDIT_STALL_MAX, GENERATION_WAIT_MAX};
use afterbay_sockets::credit::{Page, PageReader, PageStatus};
use afterbay_wire::Batch;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time without a change of the reader's count after which a frame counts as never arrived, if the journal does not know
/// whether the kernel had it. Long enough for a slow reader; rarely waited for.
const QUIET_AFTER: Duration = Duration::from_secs(5);

/// The frames of an earlier run that a sink has.
pub struct Resume {
    /// The rows that the reader has.
    pub progress: SinkProgress,
    /// The last frame of the earlier run.
    pub through: FrameNo,
    /// Frames that pass as taken although nobody knows whether the reader has them. They are not sent again.
    pub unconfirmed: u64,
    /// After a panic: the last sequence number that the socket was given. The earlier run's frames are taken only when the
    /// reader has taken this one, too.
    pub in_flight_through: u64,
    /// The last sequence number that the reader has, and its count, as a start has confirmed them.
    pub confirmed: Option<(u64, Option<Credit>)>,
}

/// The answer of a reader's count.
pub enum ReaderCount {
    /// The reader is past the recorded count.
    Since {
        /// The counted frames that the reader has finished since the recorded count.
        finished: u64,
        /// The count now.
        now: Credit,
    },
    /// The reader has no count, or another reader is in its place.
    Unknown,
}

impl Resume {
    /// After a restart: finds by the reader's count which of the sent frames the reader has, and records the result.
    /// Report [`Resume::unconfirmed`], then flush the writer: a process that dies between the two reports the frames again, but
    /// never leaves them unreported.
    pub fn after_restart(
        known: &SinkProgress,
        recovered: &RecoveredStream,
        count: ReaderCount,
        writer: &mut JournalWriter,
        decoder: &mut FrameDecoder,
    ) -> Resume {
        if recovered.unrecorded && !is_behind_records(known, &count, writer, decoder) {
            return Resume::with_missing_records(known, recovered, writer);
        }
        let (sequence, credit, unconfirmed) = match count {
            ReaderCount::Unknown => (known.last_sent(), None, known.sent().len() as u64),
            ReaderCount::Since { finished, now } => {
                let mut left = finished;
                let mut sequence = known.sequence();
                for sent in known.sent() {
                    let counted = is_counted(&sent.content, writer, decoder);
                    if counted && left == 0 {
                        break;
                    }
                    left -= u64::from(counted);
                    sequence = sent.sequence;
                }
                (sequence, Some(now), 0)
            }
        };
        let name = known.name();
        // One record takes both: the next start must not count the same frames again.
        writer.resume(name, sequence, credit);
        let progress = writer.known_sink(name).unwrap_or(known).clone();
        let confirmed = Some((sequence, credit));
        Resume { progress, through: recovered.last_frame, unconfirmed, in_flight_through: 0, confirmed }
    }

    /// Frames may have been sent without a record. None is sent again, for each may have arrived.
    fn with_missing_records(
        known: &SinkProgress,
        recovered: &RecoveredStream,
        writer: &mut JournalWriter,
    ) -> Resume {
        let (name, through) = (known.name(), recovered.last_frame);
        let unconfirmed = known.open_frames(through);
        writer.resume(name, known.last_sent(), None);
        writer.taken(name, known.last_sent(), through, None, 0);
        let progress = writer.known_sink(name).unwrap_or(known).clone();
        Resume { progress, through, unconfirmed, in_flight_through: 0, confirmed: None }
    }

    /// After a panic, or with the connection of an earlier process: the socket still has every frame that it was given, so none
    /// of these is sent again. Frames that were recorded and that the socket was not given are composed again.
    pub fn after_panic(
        name: &str,
        recovered: &RecoveredStream,
        sender: &SinkSender,
        writer: &mut JournalWriter,
    ) -> Resume {
        let (taken, last) = (sender.push.taken(), sender.last);
        let known = writer.known_sink(name).cloned().unwrap_or_default();
        let known = match sender.confirmed {
            // A disk that refuses records has refused also that the start has confirmed these frames.
            Some((sequence, credit)) if known.sent().any(|sent| sent.sequence <= sender.begun_after) => {
                writer.resume(name, sequence, credit);
                writer.known_sink(name).cloned().unwrap_or(known)
            }
            _ => known,
        };
        let credit = sender.credit();
        // Otherwise the records say what the socket has. Records that replace them could be torn, and frames would be forgotten.
        if writer.known_sink(name).is_none() || known.sent().any(|sent| sent.sequence > last) {
            writer.resume(name, taken, credit);
            let with_socket = taken + 1..=last;
            for sent in known.sent().filter(|sent| with_socket.contains(&sent.sequence)) {
                writer.sent(name, sent.sequence, sent.content.clone(), sent.unix_ns);
            }
        }
        // A record is written before its frame is given to the socket. Only a disk that refuses records leaves the socket ahead.
        let has_unrecorded = recovered.unrecorded || last > known.last_sent();
        let unconfirmed = if has_unrecorded { known.open_frames(recovered.last_frame) } else { 0 };
        if has_unrecorded {
            writer.taken(name, last, recovered.last_frame, credit, 0);
        }
        let mut progress = writer.known_sink(name).cloned().unwrap_or(known);
        progress.take(last);
        Resume {
            progress,
            through: recovered.last_frame,
            unconfirmed,
            in_flight_through: last,
            confirmed: None,
        }
    }

    /// For a new reader: it gets nothing of the earlier run.
    pub fn for_new_reader(name: &str, through: FrameNo) -> Resume {
        let progress = SinkProgress::up_to(name, through);
        Resume { progress, through, unconfirmed: 0, in_flight_through: 0, confirmed: None }
    }

    /// The part of a frame's content that the reader does not have.
    pub fn remaining(&self, frame: FrameNo, content: Content) -> Content {
        match content {
            Content::Rows { batch, requests } => self.remaining_rows(frame, batch, requests),
            _ if self.progress.has_taken(frame) => Content::Nothing,
            content => content,
        }
    }

    fn remaining_rows(&self, frame: FrameNo, batch: Batch, requests: Box<[u64]>) -> Content {
        let request = |row: u32| requests.get(row as usize).copied().unwrap_or(0);
        let is_missing = |row: &u32| !self.progress.has_taken_row(frame, RequestNo(request(*row)));
        let missing: Vec<u32> = (0..batch.rows()).filter(is_missing).collect();
        if missing.is_empty() {
            return Content::Nothing;
        }
        if missing.len() == batch.rows() as usize {
            return Content::Rows { batch, requests };
        }
        let missing_requests = missing.iter().map(|row| request(*row)).collect();
        match batch.take(&missing) {
            Ok(batch) => Content::Rows { batch, requests: missing_requests },
            // Cannot happen: the earlier run has split the same batch.
            Err(_) => Content::whole(&batch),
        }
    }
}

/// Whether the reader has not finished all recorded frames. Then no later frame has reached it.
fn is_behind_records(
    known: &SinkProgress,
    count: &ReaderCount,
    writer: &JournalWriter,
    decoder: &mut FrameDecoder,
) -> bool {
    let ReaderCount::Since { finished, .. } = count else { return false };
    let sent = known.sent().filter(|sent| is_counted(&sent.content, writer, decoder)).count();
    *finished < sent as u64
}

fn is_counted(sent: &SinkContent<'_>, writer: &JournalWriter, decoder: &mut FrameDecoder) -> bool {
    let SinkContent::Whole(frame) = *sent else { return true };
    match writer.backlog(frame).next() {
        Ok(Some(BacklogItem::Frame(frame))) => decoder.decode_bytes(frame.bytes).counted(),
        _ => true,
    }
}

/// The frames that an earlier run sent to a sink and that no record confirms, and the reader's count of them.
pub struct UnconfirmedFrames {
    page: PageReader,
    /// The recorded count.
    base: Option<Credit>,
    /// Frames among them that readers count.
    sent: u64,
    /// Frames of `sent` that the kernel had. A reader that lives has them.
    handed_over: u64,
    /// The last count, and when it was first seen.
    last: Option<(u64, Instant)>,
    /// The first of the reads in a row that found an unsettled page.
    unsettled_since: Option<Instant>,
}

impl UnconfirmedFrames {
    /// `page` is the path of the reader's credit page. `None` if no frame is in question, or there is no page.
    pub fn of(
        known: &SinkProgress,
        page: Option<&Path>,
        recovered: &RecoveredStream,
        writer: &JournalWriter,
        decoder: &mut FrameDecoder,
    ) -> Option<UnconfirmedFrames> {
        let page = PageReader::new(page?);
        if known.sent().len() == 0 && known.through() >= recovered.last_frame {
            return None;
        }
        let base = known.credit();
        let handed_over = base.map_or(0, |credit| credit.handed_over);
        let mut frames =
            UnconfirmedFrames { page, base, sent: 0, handed_over: 0, last: None, unsettled_since: None };
        for sent in known.sent() {
            if is_counted(&sent.content, writer, decoder) {
                frames.sent += 1;
                frames.handed_over += u64::from(sent.sequence <= handed_over);
            }
        }
        Some(frames)
    }

    /// Frames that readers count.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Reads the reader's count. `None` while the reader may still finish frames; call again a few milliseconds later.
    ///
    /// The count is final once the reader has finished every frame, or every frame that the kernel had and then none for
    /// 5 seconds: the other frames never arrived.
    pub fn count(&mut self, now: Instant) -> Option<ReaderCount> {
        let Some(base) = self.base else { return Some(ReaderCount::Unknown) };
        let credit = |page: &Page| Credit { generation: page.generation, sent: page.count, handed_over: 0 };
        let look = self.page.look();
        if !matches!(look, PageStatus::Unsettled(_)) {
            self.unsettled_since = None;
        }
        match look {
            PageStatus::Page(page) if page.generation == base.generation => {
                let last = self.last.filter(|(count, _)| *count == page.count).unwrap_or((page.count, now));
                self.last = Some(last);
                let since = last.1;
                let finished = page.count.saturating_sub(base.sent);
                let is_quiet = finished >= self.handed_over && now >= since + QUIET_AFTER;
                if finished >= self.sent || is_quiet {
                    return Some(ReaderCount::Since { finished, now: credit(&page) });
                }
                // The reader has frames that it does not finish, and may finish later.
                (now >= since + CREDIT_STALL_MAX).then_some(ReaderCount::Unknown)
            }
            // The reader has ended. The page has the reader's last count.
            PageStatus::Page(page) if page.last_generation == base.generation => {
                let finished = page.last_count.saturating_sub(base.sent);
                Some(ReaderCount::Since { finished, now: credit(&page) })
            }
            // The next reader is opening the page; after a time it is no page.
            PageStatus::Unsettled(_) => {
                let since = *self.unsettled_since.get_or_insert(now);
                (now >= since + GENERATION_WAIT_MAX).then_some(ReaderCount::Unknown)
            }
            PageStatus::Absent | PageStatus::Page(_) | PageStatus::Invalid(_) => Some(ReaderCount::Unknown),
        }
    }
}
