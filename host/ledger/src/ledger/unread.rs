//! Frames that must not go on since a plugin has not judged them and nothing may go on that it has not: their rows cannot be read,
//! or what plugins said of them cannot be written. Their requests end, as far as it is known who they are for.

use super::Ledger;
use super::whole::whole;
use afterbay_batch::{
    ChainOutput, Decision, Persisted, RecordedVerdicts, Row, Settled, SettledContent, not_judged, terminate,
};
use afterbay_events::event::FrameNotUnderstood;
use afterbay_events::{Barrier as BarrierLabel, Name};
use afterbay_journal as journal;
use afterbay_persist::Persister;
use afterbay_runtime::FinishKind;
use afterbay_wire::{Barrier, BarrierKind, Batch, Edit, TokenEdit};

impl Ledger {
    /// The rows of a frame cannot be read, and `plugin` lets nothing pass that it has not judged.
    pub fn refuse(
        &mut self,
        persisted: Persisted,
        barrier: &Barrier,
        plugin: &Name,
        persister: &mut Persister,
    ) -> Settled {
        let (kind, why) = match &barrier.kind {
            BarrierKind::NotUnderstood { error } => (error.label(), error.to_string()),
            kind => ("barrier", kind.to_string()),
        };
        let ended = barrier.named_rows().and_then(|named| {
            let rows: Vec<u32> = (0..named.rows()).collect();
            Some((named, named.ended(&rows, &not_judged(plugin)).ok()?))
        });
        let bytes = barrier.bytes().len() as u64;
        self.refused(
            &persisted,
            bytes,
            kind,
            why,
            plugin,
            ended.as_ref().map_or(0, |(named, _)| named.rows()),
        );
        let Some((named, ended)) = ended else {
            persister.record_outcome(&whole(&persisted, journal::Passage::Dropped));
            return Settled { persisted, content: SettledContent::Nothing };
        };
        self.end_named(persisted, named, ended, plugin, persister)
    }

    /// Nobody could look at a frame without a panic, and `plugin` lets nothing pass that it has not judged.
    pub fn refuse_unread(
        &self,
        persisted: Persisted,
        why: String,
        plugin: &Name,
        persister: &mut Persister,
    ) -> Settled {
        self.refused(&persisted, persisted.bytes.len() as u64, "panic", why, plugin, 0);
        persister.record_outcome(&whole(&persisted, journal::Passage::Dropped));
        Settled { persisted, content: SettledContent::Nothing }
    }

    fn refused(&self, persisted: &Persisted, bytes: u64, kind: &str, why: String, plugin: &Name, ended: u32) {
        self.telemetry.counters.barriers.add(BarrierLabel::Refused, 1);
        let then =
            format!("not passed on since plugin {plugin:?} did not judge it, {ended} requests are ended");
        self.telemetry.publish(FrameNotUnderstood {
            stream: self.telemetry.stream.clone(),
            frame: persisted.frame.0,
            bytes,
            kind: kind.to_owned(),
            why,
            then,
        });
    }

    /// The frame is replaced by the end of its rows. What of it was received is not known, so it counts for nothing.
    fn end_named(
        &mut self,
        persisted: Persisted,
        named: &Batch,
        ended: Batch,
        plugin: &Name,
        persister: &mut Persister,
    ) -> Settled {
        self.handles.clear();
        self.tokens.clear();
        self.requests.begin_batch();
        self.begun_and_ended = 0;
        let (mut rows, mut actions): (Vec<Row>, _) = (Vec::new(), RecordedVerdicts::default());
        for index in 0..named.rows() {
            let found = named.rid_of(index).and_then(|rid| self.requests.find_next(rid));
            let met = match found {
                Some(slot) => Ok((slot, false)),
                None => self.meet(&persisted, named, index, (0, FinishKind::Running), persister),
            };
            // Only a rid that is too long has no number, and none is.
            let Ok((slot, first)) = met else { continue };
            let Some(request) = self.requests.get_mut(slot) else { continue };
            (request.last_row, request.is_uncounted) = (persisted.at.instant, true);
            self.handles.push(request.handle);
            self.tokens.push(0);
            rows.push(Row {
                slot,
                number: request.handle.number().0,
                tokens: 0,
                completion_tokens: None,
                finish: FinishKind::Running,
                first,
                ends: false,
                swallowed: request.ended_early(),
                unread: true,
                unseen: true,
            });
            let message = not_judged(plugin);
            terminate(index, &message, plugin, &mut Decision::KEEP.clone(), &mut actions);
        }
        self.tell_actions(&rows, &actions, persisted.frame);
        self.tell_scheduler(&rows, &actions);
        let told: Vec<journal::PluginAction<'_>> = actions.plugin_actions().collect();
        persister.record_outcome(&journal::Outcome {
            changed: Some(ended.bytes().clone()),
            requests: (&self.handles).into(),
            tokens: (&self.tokens).into(),
            actions: told.into(),
            ..whole(&persisted, journal::Passage::Changed)
        });
        self.telemetry.counters.frames_rewritten.add(1);
        self.end_brief(persister);
        let requests = rows.iter().map(|row| row.number).collect();
        let alone = !ended.has_text_rids();
        Settled {
            persisted,
            content: SettledContent::Rows { batch: ended, requests, alone, aside: Vec::new() },
        }
    }

    /// What plugins said of a batch cannot be written, and `guard` has said some of it: no row goes on as it came. What leaves
    /// instead, by `edits`; `None`: nothing.
    pub fn end_all(&self, output: &mut ChainOutput, guard: &Name, edits: &mut Vec<Edit>) -> Option<Batch> {
        let gone: Vec<u32> = edits.iter().map(|edit| edit.row).collect();
        let rows = output.accounted.rows.len() as u32;
        let left: Vec<u32> = (0..rows).filter(|row| gone.binary_search(row).is_err()).collect();
        output.decisions.resize(rows as usize, Decision::KEEP);
        output.actions.0.retain(|said| gone.binary_search(&said.row).is_ok());
        let message = not_judged(guard);
        for row in &left {
            let decision = &mut output.decisions[*row as usize];
            terminate(*row, &message, guard, decision, &mut output.actions);
            let finish = decision.finish.clone();
            edits.push(Edit { tokens: TokenEdit::Empty, finish, ..Edit::new(*row) });
        }
        output.actions.0.sort_by_key(|said| said.row);
        edits.sort_by_key(|edit| edit.row);
        match output.accounted.batch.ended(&left, &message) {
            Ok(ended) => Some(ended),
            Err(_) => {
                edits.iter_mut().for_each(|edit| edit.tokens = TokenEdit::Drop);
                None
            }
        }
    }
}
