//! The content of a frame that has been through the plugins, made again from the journal: from the frame, its outcome and the
//! replaced bytes.

use afterbay_batch::{Content, Destination, FrameDecoder, SettledContent};
use afterbay_journal::{BacklogFrame, Outcome, Passage, StoredReplacement, Verdict, is_release_marker};
use afterbay_wire::{Barrier, Batch, DecodedFrame};
use bytes::Bytes;

/// The content that the stream sends for a stored frame.
pub(crate) fn stored_content(frame: &BacklogFrame, decoder: &mut FrameDecoder) -> SettledContent {
    if is_release_marker(&frame.bytes) && !is_from_scheduler(frame) {
        return released(frame, decoder);
    }
    let dropped = frame.outcome.as_deref().filter(|outcome| outcome.passage == Passage::Dropped);
    // A frame that a plugin had to judge and that could not be decoded.
    if dropped.is_some_and(|outcome| outcome.requests.is_empty()) {
        return Content::Nothing.into();
    }
    let received = match decoder.decode_bytes(frame.bytes.clone()) {
        DecodedFrame::Batch(batch) if dropped.is_some() => return SettledContent::without_rows(&batch),
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => return barrier_content(frame, &barrier, decoder),
    };
    let Some(outcome) = frame.outcome.as_deref().filter(|outcome| !outcome.requests.is_empty()) else {
        // The outcome is lost. The frame is sent as it was received.
        let requests = vec![0; received.rows() as usize].into();
        return Content::Rows { batch: received, requests }.into();
    };
    match outcome.changed.clone().map(|bytes| decoder.decode_bytes(bytes)) {
        Some(DecodedFrame::Batch(changed)) => changed_rows(outcome, &received, changed),
        Some(DecodedFrame::Barrier(changed)) => undecodable(changed.bytes()),
        None => {
            let requests = outcome.requests.iter().map(|request| request.0).collect();
            rows(received, requests, destinations(outcome))
        }
    }
}

/// The content of a frame whose rows plugins changed. Some rows of the received batch may be left out of the changed one.
fn changed_rows(outcome: &Outcome<'_>, received: &Batch, changed: Batch) -> SettledContent {
    let mut destinations = destinations(outcome).into_iter().peekable();
    let cumulative = cumulative(outcome);
    let (mut requests, mut redirected, mut cumulative_rows) = (Vec::new(), Vec::new(), Vec::new());
    let mut received = (0..).zip(outcome.requests.iter()).zip(received.rid_bytes());
    for (row, rid) in (0..).zip(changed.rid_bytes()) {
        let Some(((received_row, request), _)) = received.find(|(_, received)| *received == rid) else {
            requests.push(0);
            continue;
        };
        requests.push(request.0);
        while destinations.next_if(|(of, _)| *of < received_row).is_some() {}
        let destination = destinations.next_if(|(of, _)| *of == received_row);
        redirected.extend(destination.map(|(_, destination)| (row, destination)));
        if cumulative.binary_search(&received_row).is_ok() {
            cumulative_rows.push(row);
        }
    }
    rows(changed.with_cumulative(cumulative_rows), requests.into(), redirected)
}

/// The content of a frame whose rows cannot be read: the frame itself, or where a plugin must see every row, the end of the
/// frame's requests.
fn barrier_content(frame: &BacklogFrame, barrier: &Barrier, decoder: &mut FrameDecoder) -> SettledContent {
    let changed = frame
        .outcome
        .as_deref()
        .and_then(|outcome| Some((outcome, decoder.decode_bytes(outcome.changed.clone()?))));
    match changed {
        Some((outcome, DecodedFrame::Batch(batch))) => {
            rows(batch, outcome.requests.iter().map(|request| request.0).collect(), Vec::new())
        }
        Some((_, DecodedFrame::Barrier(changed))) => undecodable(changed.bytes()),
        None => SettledContent::from_barrier(barrier),
    }
}

/// The content of a changed frame that cannot be decoded, because all of its rows are of such a kind.
fn undecodable(bytes: &Bytes) -> SettledContent {
    Content::undecoded(bytes.clone(), true).into()
}

/// Whether a frame that looks like a release marker was received from a scheduler.
fn is_from_scheduler(frame: &BacklogFrame) -> bool {
    frame.outcome.as_deref().is_some_and(|outcome| matches!(outcome.passage, Passage::NotUnderstood(_)))
}

/// The content of a release marker: the rows that were released with it, and neither held again nor swallowed.
fn released(frame: &BacklogFrame, decoder: &mut FrameDecoder) -> SettledContent {
    let Some(outcome) = frame.outcome.as_deref() else { return Content::Nothing.into() };
    let Some(DecodedFrame::Batch(batch)) = outcome.changed.clone().map(|bytes| decoder.decode_bytes(bytes))
    else {
        return Content::Nothing.into();
    };
    let is_left_out = |row: u32| {
        let before = outcome.actions.partition_point(|action| action.row <= row);
        let last = before.checked_sub(1).and_then(|last| outcome.actions.get(last));
        let last = last.filter(|action| action.row == row);
        last.is_some_and(|action| action.verdict == Verdict::Hold || action.is_swallowed())
    };
    let sent: Vec<_> = (0..).zip(outcome.requests.iter()).filter(|(row, _)| !is_left_out(*row)).collect();
    let index = |row: u32| Some(sent.binary_search_by_key(&row, |(sent, _)| *sent).ok()? as u32);
    let redirected = destinations(outcome).into_iter();
    let cumulative = cumulative(outcome).into_iter().filter_map(index).collect();
    let redirected = redirected.filter_map(|(row, destination)| Some((index(row)?, destination))).collect();
    let requests = sent.iter().map(|(_, request)| request.0).collect();
    rows(batch.with_cumulative(cumulative), requests, redirected)
}

fn rows(batch: Batch, requests: Box<[u64]>, redirected: Vec<(u32, Destination)>) -> SettledContent {
    SettledContent { content: Content::Rows { batch, requests }, to_all: false, redirected }
}

/// The rows that do not go to their reader. The last verdict on a row counts.
fn destinations(outcome: &Outcome<'_>) -> Vec<(u32, Destination)> {
    let mut destinations: Vec<(u32, Destination)> = Vec::new();
    for action in outcome.actions.iter() {
        let destination = match action.verdict {
            Verdict::Route => Destination::To(action.text.to_string()),
            Verdict::SkipText => Destination::SkipText,
            _ => continue,
        };
        destinations.pop_if(|(row, _)| *row == action.row);
        destinations.push((action.row, destination));
    }
    destinations
}

/// The rows whose ids are all ids of the request so far, ascending. The last verdict on a row counts.
fn cumulative(outcome: &Outcome<'_>) -> Vec<u32> {
    let mut rows = Vec::new();
    for action in outcome.actions.iter() {
        let Some(replaced) = action.replaced() else { continue };
        rows.pop_if(|row| *row == action.row);
        if replaced == StoredReplacement::Cumulative {
            rows.push(action.row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::{FrameNo, PluginAction, RequestNo};
    use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
    use afterbay_wire::{BatchKind, Edit, Layouts, TokenEdit, decode};

    fn replaced(row: u32, text: String) -> PluginAction<'static> {
        let (plugin, ids) = ("p".into(), vec![7].into());
        PluginAction { row, plugin, verdict: Verdict::Replace, text: text.into(), ids, forwarded: 1 }
    }

    #[test]
    fn a_row_is_cumulative_if_the_last_plugin_that_replaced_its_tokens_gave_all_ids_so_far() {
        let all = |row| replaced(row, StoredReplacement::cumulative(3));
        let new = |row| replaced(row, String::new());
        let note = PluginAction { verdict: Verdict::Annotate, ..new(1) };
        let actions = vec![all(0), new(0), all(1), note, new(2), all(2), new(3), all(4), all(4)];
        let outcome = Outcome { actions: actions.into(), ..Outcome::new(FrameNo(1), 0, Passage::Changed) };
        assert_eq!(cumulative(&outcome), [1, 2, 4]);
    }

    #[test]
    fn each_row_of_a_changed_frame_has_its_own_number_and_destination_also_if_a_rid_comes_twice() {
        let row = |rid: &str| SynthRow { rid: rid.to_owned(), ids: vec![1], ..SynthRow::default() };
        let rows = ["a", "b", "c", "a", "d"].map(row).into();
        let frame = SynthBatch { rows }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
        let DecodedFrame::Batch(received) = decode(frame, &Layouts::builtin()) else { panic!("a batch") };
        let drop = |row| Edit { tokens: TokenEdit::Drop, ..Edit::new(row) };
        let changed = received.edit(&[drop(1), drop(2)]).unwrap().unwrap();
        let route = |row, to: &str| PluginAction { verdict: Verdict::Route, ..replaced(row, to.to_owned()) };
        let actions = vec![route(0, "x"), route(1, "y"), route(4, "z")];
        let outcome = Outcome {
            requests: [7, 1, 2, 9, 3].map(RequestNo).to_vec().into(),
            actions: actions.into(),
            ..Outcome::new(FrameNo(1), 0, Passage::Changed)
        };
        let SettledContent { content, redirected, .. } = changed_rows(&outcome, &received, changed);
        let Content::Rows { requests, .. } = content else { panic!("rows") };
        assert_eq!(*requests, [7, 9, 3]);
        let redirected: Vec<_> = redirected.iter().map(|(row, to)| (*row, to.clone())).collect();
        assert_eq!(redirected, [(0, Destination::To("x".into())), (2, Destination::To("z".into()))]);
    }
}
