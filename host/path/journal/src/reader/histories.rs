//! Histories of the requests with one rid. Summaries give the segments; the rows are then read from those
//! segments.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::deliveries::Deliveries;
use super::{JournalRow, RequestHistory, RequestInfo, SegmentFold, StreamReader};
use crate::error::ReadError;
use crate::format::RecordKind;
use crate::outcome::{Outcome, PluginAction, row_effects};
use crate::plugin_component::PluginComponent;
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::record::RecordBody;
use crate::segment::{Payloads, Segment};

pub(super) fn lives(stream: &StreamReader, rid: &str) -> Result<Vec<RequestHistory>, ReadError> {
    let mut requests: BTreeMap<u64, RequestInfo> = BTreeMap::new();
    // Segments with rows stay open, so that retention cannot take them away.
    let mut with_rows: BTreeMap<SegmentId, Segment> = BTreeMap::new();
    let mut fold = SegmentFold::new(stream.segments.clone())?;
    fold.only_rids(HashSet::from([rid.to_owned()]));
    let listed = fold.remaining();
    while let Some(segment) = fold.next_segment()? {
        let of_rid = fold.state.requests.iter().filter(|entry| entry.info.rid == rid);
        let mut here = false;
        for entry in of_rid {
            here |= entry.here;
            requests.insert(entry.info.number.0, entry.info.clone());
        }
        if here {
            with_rows.insert(segment.id, segment);
        }
    }
    let mut rows = HistoryBuilder {
        stream,
        lives: requests.keys().map(|&number| (number, BTreeMap::new())).collect(),
        rows_left: requests.values().map(|request| request.rows).sum(),
        frames_without_outcome: HashMap::new(),
        skipped: BTreeMap::new(),
        plugins: HashMap::new(),
        deliveries: Deliveries::default(),
    };
    let first = with_rows.first_key_value().map(|(id, _)| *id);
    let next = listed.iter().skip(1).copied().map(Some).chain([None]);
    let listed = listed.iter().copied().zip(next).filter(|(id, _)| first.is_some_and(|first| *id >= first));
    for (id, next) in listed {
        // Segments after the last row only tell which sinks took the rows.
        if with_rows.is_empty() && rows.deliveries.is_settled() {
            break;
        }
        let segment = match with_rows.remove(&id) {
            Some(segment) => Some(segment),
            None => stream.segments.open(id)?,
        };
        let Some(segment) = segment else { continue };
        if !rows.read(&segment, next)? {
            break;
        }
    }
    rows.locate()?;
    let HistoryBuilder { mut lives, deliveries, .. } = rows;
    for (request, rows) in &mut lives {
        for row in rows.values_mut() {
            row.deliveries = deliveries.of_row(row.frame, RequestNo(*request));
        }
    }
    let life = |(number, request): (u64, RequestInfo)| {
        let mut rows: Vec<JournalRow> = lives.remove(&number).unwrap_or_default().into_values().collect();
        if request.erased.is_some() {
            for row in &mut rows {
                let actions = std::mem::take(&mut row.actions);
                row.actions = actions.into_iter().map(PluginAction::without_content).collect();
            }
        }
        let record = match request.record_frame {
            FrameNo(0) => None,
            frame => stream.position(frame)?,
        };
        Ok(RequestHistory { request, record, rows })
    };
    requests.into_iter().map(life).collect()
}

struct HistoryBuilder<'a> {
    stream: &'a StreamReader,
    /// By request, then by frame and row, so that a record written twice counts once.
    lives: HashMap<u64, BTreeMap<(u64, u32), JournalRow>>,
    /// Rows of the requests that were not read yet.
    rows_left: u64,
    /// State of the sinks at the end of the journal.
    deliveries: Deliveries,
    /// Component of each plugin at the record that is read.
    plugins: HashMap<String, Arc<PluginComponent>>,
    /// Frames read before their outcome.
    frames_without_outcome: HashMap<u64, Position>,
    /// Frames that were forwarded without being stored: the first one, and their number.
    skipped: BTreeMap<u64, u64>,
}

impl HistoryBuilder<'_> {
    /// Reads a segment. Returns false if no later record says anything about the rows.
    fn read(&mut self, segment: &Segment, next: Option<SegmentId>) -> Result<bool, ReadError> {
        let limit = self.stream.segments.recorded_end(next, segment.id)?.limit;
        let mut scan = segment.records(limit, Payloads::NotFrames);
        // The CHANGED that precedes the next outcome.
        let mut changed = None;
        while let Some(record) = scan.record()? {
            let number = record.head.number;
            let position =
                Position { frame: FrameNo(number), segment: segment.id, offset: record.offset as u32 };
            if record.head.kind == RecordKind::CHANGED {
                changed = Some(position);
                continue;
            }
            let changed = changed.take().filter(|changed| changed.frame == position.frame);
            match scan.body(&record) {
                Some(RecordBody::Frame) => {
                    self.frames_without_outcome.insert(number, position);
                }
                Some(RecordBody::Outcome(outcome)) => self.outcome(&outcome, changed),
                Some(RecordBody::Plugin(component)) => self.plugin(component),
                Some(RecordBody::Skipped { count, .. }) => _ = self.skipped.insert(number, count),
                Some(body) => {
                    self.deliveries.apply(number, &body);
                    let is_taken = matches!(body, RecordBody::Taken(_));
                    if is_taken && self.rows_left == 0 && self.deliveries.is_settled() {
                        return Ok(false);
                    }
                }
                None => {}
            }
        }
        Ok(true)
    }

    fn plugin(&mut self, component: PluginComponent) {
        // Each segment repeats the components.
        if self.plugins.get(&component.plugin).is_none_or(|known| **known != component) {
            self.plugins.insert(component.plugin.clone(), component.into());
        }
    }

    fn outcome(&mut self, outcome: &Outcome<'static>, changed: Option<Position>) {
        let position = self.frames_without_outcome.remove(&outcome.frame.0);
        if outcome.is_record() {
            return;
        }
        for (row, request) in outcome.requests.iter().enumerate() {
            let Some(life) = self.lives.get_mut(&request.0) else { continue };
            let index = row as u32;
            let tokens = outcome.tokens.get(row).copied().unwrap_or_default();
            let actions: Vec<_> = outcome.actions.iter().filter(|each| each.row == index).cloned().collect();
            let effect = row_effects(&actions).next();
            let mut plugins: Vec<Arc<PluginComponent>> =
                actions.iter().filter_map(|action| self.plugins.get(&*action.plugin).cloned()).collect();
            plugins.dedup();
            self.deliveries.track(outcome.frame, *request);
            let row = JournalRow {
                frame: outcome.frame,
                position,
                changed,
                received_unix_ns: outcome.received_unix_ns,
                row: index,
                tokens,
                forwarded: effect.map_or(tokens, |effect| effect.forwarded),
                passage: outcome.passage.clone(),
                finish: outcome.finished.iter().find(|each| each.row == index).cloned(),
                gap: outcome.gaps.iter().find(|each| each.row == index).copied(),
                actions,
                plugins,
                deliveries: Vec::new(),
            };
            if life.insert((outcome.frame.0, index), row).is_none() {
                self.rows_left = self.rows_left.saturating_sub(1);
            }
        }
    }

    /// Searches for the frames that are in an earlier segment than their outcome, or not in the journal.
    fn locate(&mut self) -> Result<(), ReadError> {
        let rows = self.lives.values_mut().flat_map(BTreeMap::values_mut);
        for row in rows.filter(|row| row.position.is_none()) {
            let frame = row.frame.0;
            let skipped = self.skipped.range(..=frame).next_back();
            if skipped.is_none_or(|(first, count)| frame - first >= *count) {
                row.position = self.stream.position(row.frame)?;
            }
        }
        Ok(())
    }
}
