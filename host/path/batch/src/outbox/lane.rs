//! A lane: frames whose rows may overtake each other. They have one kind, wire format and layout, and no barrier between
//! them.

use std::collections::VecDeque;
use std::ops::{AddAssign, SubAssign};
use std::time::Instant;

use afterbay_journal::{FrameNo, RequestNo, SinkContent};
use afterbay_wire::{Batch, BatchPart, Finish, Matched, RowsError, is_first, is_health_check};
use bytes::Bytes;

use crate::joins::JoinEnds;
use crate::outbox::backlog::{Backlog, NewRow, ROW_BYTES, Row};
use crate::outbox::frame::FrameToSend;
use crate::outbox::sent::FrameIndex;

/// The most frames that are sent one by one before rows are joined again.
const UNJOINED_MAX: usize = 256;

/// A frame with rows that wait.
#[derive(Debug)]
pub(crate) struct WaitingFrame {
    pub(crate) index: FrameIndex,
    pub(crate) number: u64,
    pub(crate) at: Instant,
    /// `None` once all of its rows are sent.
    pub(crate) batch: Option<Batch>,
    /// The number of each row's request.
    requests: Box<[u64]>,
    /// Whether each row is sent singly because it may be a part of a tool call. Empty: no row.
    single: Box<[bool]>,
    /// The number of rows that wait.
    unsent: u32,
    /// The number of rows that are the first of their requests.
    first_rows: u32,
    size: FrameSize,
}

/// The size of what waits, or of a frame of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameSize {
    pub(crate) frames: usize,
    /// Bytes of the frames.
    pub(crate) bytes: u64,
    /// Bytes of memory: the frames, their decoded rows, and their places in the queue.
    pub(crate) memory: u64,
}

impl AddAssign for FrameSize {
    fn add_assign(&mut self, other: FrameSize) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.memory += other.memory;
    }
}

impl SubAssign for FrameSize {
    fn sub_assign(&mut self, other: FrameSize) {
        self.frames -= other.frames;
        self.bytes -= other.bytes;
        self.memory -= other.memory;
    }
}

impl FrameSize {
    /// Replaces a part.
    pub(crate) fn replace(&mut self, before: FrameSize, after: FrameSize) {
        *self -= before;
        *self += after;
    }

    /// The size of a frame of decoded rows.
    fn of_rows(batch: &Batch) -> FrameSize {
        let rows = batch.rows() as usize * (size_of::<u64>() + ROW_BYTES);
        let memory = size_of::<WaitingFrame>() - size_of::<Batch>() + batch.memory() + rows;
        FrameSize { frames: 1, bytes: batch.bytes().len() as u64, memory: memory as u64 }
    }
}

impl WaitingFrame {
    pub(crate) fn new(
        index: FrameIndex,
        number: u64,
        at: Instant,
        batch: Batch,
        requests: Box<[u64]>,
        single: Box<[bool]>,
    ) -> WaitingFrame {
        let (unsent, first_rows) = (batch.rows(), batch.first_rows());
        let size = FrameSize::of_rows(&batch);
        WaitingFrame { index, number, at, batch: Some(batch), requests, single, unsent, first_rows, size }
    }

    /// Whether none of its rows is sent.
    fn is_whole(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.rows() == self.unsent)
    }

    /// The number of a row's request. 0 if the caller gave none.
    fn request(&self, row: u32) -> u64 {
        self.requests.get(row as usize).copied().unwrap_or(0)
    }

    /// Marks `rows` more of its rows as sent.
    fn leave(&mut self, rows: u32) {
        self.unsent -= rows;
        if self.unsent == 0 {
            self.batch = None;
        }
    }
}

/// The frames of a lane, and their rows by request.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    frames: VecDeque<WaitingFrame>,
    size: FrameSize,
    /// The number of frames, from the front, whose rows are in `backlog`. A frame that waits alone is not indexed.
    indexed: usize,
    backlog: Backlog,
    /// Frames from the front that are sent one by one, because rows could not be joined.
    unjoined: usize,
    /// [`Lane::unjoined`] after the last attempt that failed; 0 after one that did not.
    unjoined_last: usize,
    /// Rows that the rests of front frames may still have before the next composed frame: see [`Lane::pick_rest`].
    rest_rows: usize,
    // Reused buffers, so that composing allocates little.
    picked: Vec<(u32, u32)>,
    rows: Vec<(FrameIndex, u32)>,
    ids: Vec<i64>,
}

impl Lane {
    /// Whether `batch` may join this lane.
    pub(crate) fn fits(&self, batch: &Batch) -> bool {
        let other = self.frames.iter().rev().find_map(|frame| frame.batch.as_ref());
        other.is_none_or(|other| other.is_like(batch))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The number of rows that wait.
    pub(crate) fn rows(&self) -> usize {
        let fresh = self.frames.iter().skip(self.indexed).map(|frame| frame.unsent as usize);
        self.backlog.rows() + fresh.sum::<usize>()
    }

    /// The tokens of the rows that wait. Reads the frames that are not indexed.
    pub(crate) fn tokens(&self) -> u64 {
        let fresh = self.frames.iter().skip(self.indexed).filter_map(|frame| frame.batch.as_ref());
        self.backlog.tokens() + fresh.flat_map(Batch::token_counts).map(u64::from).sum::<u64>()
    }

    /// The size of the frames that wait. Their requests are part of the memory.
    pub(crate) fn size(&self) -> FrameSize {
        FrameSize { memory: self.size.memory + self.backlog.memory() as u64, ..self.size }
    }

    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.frames.front().map(|frame| frame.at)
    }

    /// Adds a frame. A frame that waits alone is not indexed.
    pub(crate) fn push(&mut self, frame: WaitingFrame) {
        self.size += frame.size;
        self.frames.push_back(frame);
    }

    /// Indexes the frames that were added since the last call. Each health check becomes a frame of its own in `urgent`.
    pub(crate) fn index(&mut self, ends: &JoinEnds, urgent: &mut VecDeque<FrameToSend>) {
        let Lane { frames, size, indexed, backlog, ids, .. } = self;
        for frame in frames.iter_mut().skip(*indexed) {
            *indexed += 1;
            let Some(batch) = &frame.batch else { continue };
            let (frame_index, at) = (frame.index, frame.at);
            let mut alone_rows = 0;
            let text = ends.vocabulary(batch.kind());
            let counts = batch.token_counts().zip(batch.completion_counts());
            let columns = batch.rids().zip(counts).zip(batch.finishes());
            for (row, ((rid, (tokens, count)), finish)) in (0..).zip(columns) {
                if is_health_check(rid.as_bytes())
                    && let Ok(alone) = batch.take(&[row])
                {
                    alone_rows += 1;
                    let (bytes, first) = (alone.bytes().clone(), is_first(tokens, count).into());
                    urgent.push_back(FrameToSend {
                        content: rows_of([(frame.request(row), frame.number)]),
                        ..FrameToSend::whole(frame_index, frame.number, at, bytes, true, 1, first)
                    });
                    continue;
                }
                let text = text.map(|vocabulary| {
                    ids.clear();
                    batch.row_ids(row, ids);
                    (vocabulary, &**ids)
                });
                // A row that has all tokens of its request is its first. Some engines do not count.
                let first = count.map_or_else(|| batch.is_first(row), |count| count == u64::from(tokens));
                let last = finish != Finish::Running;
                // The detokenizer cuts the text of a last row at the stop text. Single rows have already sent a part of it,
                // which a joined row would not.
                let is_cut = text.is_some() && matches!(finish, Finish::Stop { matched: Matched::Text(_) });
                let alone = is_cut || frame.single.get(row as usize) == Some(&true);
                let request = frame.request(row);
                backlog
                    .push(NewRow { frame: frame_index, row, rid, request, tokens, first, last, alone }, text);
            }
            // The batch has more memory once its columns were read.
            let grown = FrameSize::of_rows(batch);
            size.replace(std::mem::replace(&mut frame.size, grown), grown);
            frame.leave(alone_rows);
        }
        self.remove_sent();
    }

    /// Composes the next frame. A frame that waits alone is sent unchanged; otherwise the frame has at most `max_requests`
    /// requests. `now` is the frame's time if no source frame is known. `sent` gets the time at which each source frame was
    /// received, and the number of its rows.
    pub(crate) fn next(
        &mut self,
        max_requests: usize,
        now: Instant,
        sent: &mut Vec<(Instant, u32)>,
    ) -> Option<FrameToSend> {
        if self.frames.len() == 1 && self.frames.front().is_some_and(WaitingFrame::is_whole) {
            return self.whole(sent);
        }
        loop {
            if self.unjoined > 0 {
                self.unjoined -= 1;
                return self.rest_of_front(sent);
            }
            let is_rest = self.pick_rest();
            if !is_rest {
                self.backlog.pick(max_requests, &mut self.picked);
            }
            if self.picked.is_empty() {
                return None;
            }
            self.backlog.rows_of(&self.picked, &mut self.rows);
            match self.join() {
                Ok((bytes, frame)) => {
                    self.unjoined_last = 0;
                    let picked = self.picked.len();
                    self.rest_rows = if is_rest { self.rest_rows - picked } else { picked };
                    return Some(self.leave(bytes, frame, now, sent));
                }
                Err(error) => {
                    self.backlog.stay(&self.picked);
                    if !self.make_single(&error) {
                        self.unjoined_last = (2 * self.unjoined_last).clamp(1, UNJOINED_MAX);
                        self.unjoined = self.unjoined_last;
                    }
                }
            }
        }
    }

    /// Picks the requests with rows in the front frame if each of them gets only a row in each composed frame. Other requests
    /// go on meanwhile, and these rows would keep all later frames in memory. So they leave in a frame of their own. Such frames
    /// have as many rows as the composed frame before them. Returns whether it picked any.
    fn pick_rest(&mut self) -> bool {
        let rows_max = self.backlog.slow().min(self.rest_rows);
        let Some(front) = self.frames.front().filter(|front| front.unsent as usize <= rows_max) else {
            return false;
        };
        self.backlog.pick_slow(front.index, &front.requests, &mut self.picked)
    }

    /// Sends the rows of one request singly if the error is about it. Returns false if it is not, or they already are.
    fn make_single(&mut self, error: &RowsError) -> bool {
        let (RowsError::Column { rid, .. } | RowsError::AfterFinish { rid }) = error else { return false };
        let has_rid = |row: &Row| {
            let batch = self.frame(row.frame).and_then(|frame| frame.batch.as_ref());
            batch.is_some_and(|batch| batch.rid(row.row) == rid)
        };
        let found =
            self.backlog.fronts_of(&self.picked).find(|(_, row)| has_rid(row)).map(|(index, _)| index);
        found.is_some_and(|index| self.backlog.make_single(index))
    }

    /// Writes the picked rows as one frame. Returns its number if these are all rows of one source frame.
    fn join(&self) -> Result<(Bytes, Option<u64>), RowsError> {
        let rows: Vec<u32> = self.rows.iter().map(|(_, row)| *row).collect();
        let mut parts = Vec::new();
        let mut number = None;
        let mut from = 0;
        for of_one in self.rows.chunk_by(|one, next| one.0 == next.0) {
            let to = from + of_one.len();
            if let Some(frame) = self.frame(of_one[0].0)
                && let Some(batch) = &frame.batch
            {
                parts.push(BatchPart { batch, rows: Some(&rows[from..to]) });
                number = Some(frame.number);
            }
            from = to;
        }
        match parts.as_slice() {
            [BatchPart { batch, rows: Some(rows) }] if rows.len() == batch.rows() as usize => {
                Ok((batch.bytes().clone(), number))
            }
            parts => Ok((Batch::join(parts)?.bytes().clone(), None)),
        }
    }

    /// Removes the picked rows after they were written.
    fn leave(
        &mut self,
        bytes: Bytes,
        frame: Option<u64>,
        now: Instant,
        sent: &mut Vec<(Instant, u32)>,
    ) -> FrameToSend {
        let rows = (self.rows.len() as u32, self.picked.len() as u32);
        let number = |frame_index| self.frame(frame_index).map_or(0, |frame| frame.number);
        let content = match frame {
            Some(frame) => SinkContent::Whole(FrameNo(frame)),
            None => {
                rows_of(self.backlog.last_of(&self.picked).map(|(request, index)| (request, number(index))))
            }
        };
        let received = |frame_index| self.frame(frame_index).map_or(now, |frame| frame.at);
        let first_rows = self.backlog.first_rows_of(&self.picked).map(|index| (received(index), 1)).collect();
        self.backlog.leave(&self.picked);
        let groups = self.rows.chunk_by(|one, next| one.0 == next.0);
        let sources: Vec<(FrameIndex, u32)> = groups.map(|group| (group[0].0, group.len() as u32)).collect();
        let received = |frame_index| self.frame(frame_index).map_or(now, |frame| frame.at);
        sent.extend(sources.iter().map(|(frame_index, rows)| (received(*frame_index), *rows)));
        let at = sent.first().map_or(now, |(at, _)| *at);
        self.mark_sent(&sources);
        let (sequence, counted, is_torn) = (0, true, false);
        FrameToSend { sequence, bytes, counted, at, content, first_rows, sources, rows, is_torn }
    }

    /// Sends the first frame unchanged.
    fn whole(&mut self, sent: &mut Vec<(Instant, u32)>) -> Option<FrameToSend> {
        let front = self.frames.front()?;
        let (index, rows, at) = (front.index, front.unsent, front.at);
        let bytes = front.batch.as_ref()?.bytes().clone();
        let whole = FrameToSend::whole(index, front.number, at, bytes, true, rows, front.first_rows);
        sent.push((at, rows));
        self.backlog.forget(index, &front.requests);
        self.mark_sent(&[(index, rows)]);
        Some(FrameToSend { sources: vec![(index, rows)], ..whole })
    }

    /// Sends the rest of the first frame, of which some rows were sent joined with others.
    pub(crate) fn rest_of_front(&mut self, sent: &mut Vec<(Instant, u32)>) -> Option<FrameToSend> {
        if self.frames.front()?.is_whole() {
            return self.whole(sent);
        }
        let frame = self.frames.front()?;
        let (index, number, at) = (frame.index, frame.number, frame.at);
        let rows = self.backlog.forget(index, &frame.requests);
        let batch = frame.batch.as_ref()?;
        let (bytes, is_torn) = match batch.take(&rows) {
            Ok(rest) => (rest.bytes().clone(), false),
            Err(_) => (batch.bytes().clone(), true),
        };
        let content = rows_of(rows.iter().map(|row| (frame.request(*row), number)));
        let first_rows = rows.iter().filter(|row| batch.is_first(**row)).count() as u32;
        let count = rows.len() as u32;
        sent.push((at, count));
        self.mark_sent(&[(index, count)]);
        let rest = FrameToSend::whole(index, number, at, bytes, true, count, first_rows);
        Some(FrameToSend { content, sources: vec![(index, count)], is_torn, ..rest })
    }

    /// Marks rows of these frames as sent.
    fn mark_sent(&mut self, of: &[(FrameIndex, u32)]) {
        for (frame_index, rows) in of {
            if let Ok(index) = self.frames.binary_search_by_key(frame_index, |frame| frame.index)
                && let Some(frame) = self.frames.get_mut(index)
            {
                frame.leave(*rows);
            }
        }
        self.remove_sent();
    }

    /// Removes the frames whose rows are all sent.
    fn remove_sent(&mut self) {
        while let Some(frame) = self.frames.pop_front_if(|frame| frame.unsent == 0) {
            self.size -= frame.size;
            self.indexed = self.indexed.saturating_sub(1);
        }
    }

    fn frame(&self, frame_index: FrameIndex) -> Option<&WaitingFrame> {
        let index = self.frames.binary_search_by_key(&frame_index, |frame| frame.index).ok()?;
        self.frames.get(index)
    }
}

/// The content of a composed frame: each request in it, and the frame up to which all its rows are sent.
fn rows_of(rows: impl IntoIterator<Item = (u64, u64)>) -> SinkContent<'static> {
    SinkContent::Rows(rows.into_iter().map(|(request, frame)| (RequestNo(request), FrameNo(frame))).collect())
}
