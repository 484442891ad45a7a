//! A reload: an instance of another component, or with other settings, takes over from a plugin's instance, and knows what
//! that instance knew of the live requests.
//!
//! Where both versions have `export-state` and `import-state`, the new instance imports what the old one exports. Otherwise, and
//! where that fails, the live requests' rows are replayed to the new instance. Only where the replay fails too, or where the
//! plugin has no instance, are the requests reported to the new instance as after a fault. Invariant: a plugin has one instance
//! in the chain; the old one goes on until the new one is ready.

use super::PluginSlot;
use crate::context::ChainContext;
use crate::opened::OpenedRequest;
use crate::replay::{Handed, Missed, Replayed};
use crate::resumed;
use crate::setup::PluginSetup;
use crate::status::LastReload;
use afterbay_batch::Timestamp;
use afterbay_events::event::{PluginReloadFailed, PluginReloaded, PluginReplayed, PluginStateLost};
use afterbay_events::{Name, ReloadResult};
use afterbay_runtime::{CallSet, ColumnSet, Columns, Digest, Opened, Plugin, ReloadError};
use std::collections::HashSet;
use std::sync::Arc;

/// How often an instance is shown off the path what came while it was shown what came before. Each time it is less, by the
/// plugin's part of the stream's time; where that is all of it, the last time is on the path.
const ROUNDS_MAX: u32 = 16;

/// An instance that is to know of the live requests before it takes over.
pub struct Wanted {
    pub plugin: Name,
    /// Of those of this plugin: an earlier one that comes late is of no use.
    pub number: u64,
    pub instance: Plugin,
    pub behind: Behind,
    /// The plugins that are asked before it.
    pub before: HashSet<String>,
}

/// What an instance is yet to be shown.
pub enum Behind {
    /// All rows of these requests.
    All(Vec<OpenedRequest>),
    /// What the one before it knows, and then of these requests.
    Handed(Handed, Vec<OpenedRequest>),
    /// What came since it was shown so many rows.
    Since(Missed, u64),
}

/// An instance that does not know the live requests yet, and what it misses meanwhile.
pub(super) struct Successor {
    digest: Digest,
    settings: String,
    /// Bytes of state that it imports. `None`: rows are replayed to it.
    handed_bytes: Option<u64>,
    /// Why an earlier instance of it could not import the state.
    not_imported: Option<String>,
    wants: ColumnSet,
    /// Until somebody shows it.
    wanted: Option<Wanted>,
    missed: Missed,
    is_too_much: bool,
    rounds: u32,
}

impl Successor {
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn wants(&self) -> ColumnSet {
        self.wants
    }

    pub(super) fn closed(&mut self, requests: &[u64]) {
        self.record(|missed| missed.closed(requests));
    }

    pub(super) fn changed(&mut self, request: u64, attributes: Option<Arc<str>>) {
        self.record(|missed| missed.changed(request, attributes));
    }

    fn record(&mut self, persister: impl FnOnce(&mut Missed) -> bool) {
        if !self.is_too_much && !persister(&mut self.missed) {
            (self.is_too_much, self.missed) = (true, Missed::default());
        }
    }
}

impl PluginSlot {
    /// A changed component, compiled and configured off the path, takes over between two batches.
    pub fn reload(&mut self, reloaded: Result<Plugin, ReloadError>, context: ChainContext<'_>) {
        match reloaded {
            Ok(instance) => self.swap(instance, self.settings.clone(), context),
            Err(error) => self.not_reloaded(error.to_string(), context.now),
        }
    }

    /// Between two batches: makes this instance the successor, or lets it take over at once where there is nothing to learn.
    fn swap(&mut self, instance: Plugin, settings: String, context: ChainContext<'_>) {
        // A later successor takes the place of one that is not ready yet.
        self.successor = None;
        let handed = self.hand_over(&instance, context);
        if handed.is_some() || self.can_replay(context) {
            self.wait(instance, settings, handed, None, context);
        } else {
            self.anew(instance, settings, context);
        }
    }

    /// Whether a successor can wait for a replay: there are live requests, and an instance judges their rows meanwhile.
    fn can_replay(&self, context: ChainContext<'_>) -> bool {
        context.ledger.live() > 0 && self.plugin.is_some()
    }

    /// The new instance takes over at once. The live requests are reported to it as after a fault.
    fn anew(&mut self, instance: Plugin, settings: String, context: ChainContext<'_>) {
        self.install(instance, settings, context.now);
        if let Some(instance) = self.plugin.take() {
            self.take_over(instance, &resumed::now(context.ledger), context);
        }
        self.reloaded(context.ledger.live() as u64, 0);
    }

    /// Puts the new instance in the place of the old one; the live requests are not reported to it here.
    fn install(&mut self, instance: Plugin, settings: String, now: Timestamp) {
        (self.component, self.settings) = (instance.component().clone(), settings);
        if let Some(before) = self.plugin.replace(instance) {
            before.retire();
        }
        self.is_lost = true;
        self.faults.started();
        self.retry_at = None;
        self.last_reload = Some(LastReload { at: now.system_time(), refused: None });
        self.health.clear(&self.reload_key());
        self.leave_quarantine("reload");
    }

    fn reloaded(&self, resumed_requests: u64, state_bytes: u64) {
        self.counters.reloads.add(ReloadResult::Ok, 1);
        let (stream, plugin) = self.names();
        let (version, digest) = self.version();
        self.telemetry.publish(PluginReloaded {
            stream,
            plugin,
            version,
            digest,
            resumed_requests,
            state_bytes,
        });
    }

    /// Makes an instance the successor: it imports this state, or the live requests are replayed to it, and takes over then.
    fn wait(
        &mut self,
        instance: Plugin,
        settings: String,
        handed: Option<Handed>,
        not_imported: Option<String>,
        context: ChainContext<'_>,
    ) {
        self.successors += 1;
        let requests = resumed::now(context.ledger)
            .into_iter()
            .map(|opened| OpenedRequest::new(&opened, context.attributes));
        let handed_bytes = handed.as_ref().map(|handed| handed.state.len() as u64);
        let behind = match handed {
            Some(handed) => Behind::Handed(handed, requests.collect()),
            None => {
                Behind::All(requests.map(|begun| OpenedRequest { received_tokens: 0, ..begun }).collect())
            }
        };
        let wanted = Wanted {
            plugin: self.name.clone(),
            number: self.successors,
            instance,
            behind,
            before: HashSet::new(),
        };
        let (digest, wants) = (wanted.instance.component().digest(), wanted.instance.wants());
        self.successor = Some(Successor {
            digest,
            settings,
            handed_bytes,
            not_imported,
            wants,
            wanted: Some(wanted),
            missed: Missed::default(),
            is_too_much: false,
            rounds: 0,
        });
    }

    pub fn has_wanted(&self) -> bool {
        self.successor.as_ref().is_some_and(|successor| successor.wanted.is_some())
    }

    /// What is to be shown to the one that waits, once.
    pub fn wanted(&mut self) -> Option<Wanted> {
        self.successor.as_mut()?.wanted.take()
    }

    /// A batch came while one waits.
    pub(super) fn miss(&mut self, opened: &[Opened<'_>], columns: &Columns<'_>, context: ChainContext<'_>) {
        let Some(successor) = &mut self.successor else { return };
        if !opened.is_empty() {
            let begun = opened.iter().map(|opened| OpenedRequest::new(opened, context.attributes)).collect();
            successor.record(|missed| missed.opened(begun));
        }
        let wants = successor.wants;
        successor.record(|missed| missed.rows(columns, wants));
    }

    /// The one that waits has seen what came before.
    pub fn replayed(&mut self, number: u64, replayed: Replayed, context: ChainContext<'_>) {
        if self.successors != number {
            return;
        }
        let Some(mut successor) = self.successor.take() else { return };
        let Replayed { mut instance, shown } = replayed;
        if let (Ok(rows), true) = (&shown, successor.missed.is_much() && successor.rounds < ROUNDS_MAX) {
            let behind = Behind::Since(std::mem::take(&mut successor.missed), *rows);
            let (plugin, before) = (self.name.clone(), HashSet::new());
            successor.wanted = Some(Wanted { plugin, number, instance, behind, before });
            successor.rounds += 1;
            self.successor = Some(successor);
            return;
        }
        let Successor { settings, handed_bytes, not_imported, missed, is_too_much, .. } = successor;
        instance.set_off_path(false);
        let shown = shown.and_then(|rows| match is_too_much {
            true => Err("more came meanwhile than is kept for it".to_owned()),
            false => missed.show(&mut instance).map(|more| rows + more),
        });
        match shown {
            Ok(rows) => {
                self.install(instance, settings, context.now);
                self.requests_open = resumed::now(context.ledger).len() as u64;
                self.drain_log(context);
                self.reloaded(self.requests_open, handed_bytes.unwrap_or(0));
                if handed_bytes.is_none() {
                    let (stream, plugin) = self.names();
                    self.telemetry.publish(PluginReplayed { stream, plugin, rows, why: not_imported });
                }
            }
            Err(why) => match instance.component().instantiate(&settings) {
                Ok(fresh) if handed_bytes.is_some() && self.can_replay(context) => {
                    self.wait(fresh, settings, None, Some(why), context);
                }
                Ok(fresh) => {
                    let (stream, plugin) = self.names();
                    let why = not_imported.map_or_else(|| why.clone(), |first| format!("{first}, and {why}"));
                    self.telemetry.publish(PluginStateLost { stream, plugin, why });
                    self.anew(fresh, settings, context);
                }
                Err(error) => self.not_reloaded(error.to_string(), context.now),
            },
        }
    }

    fn not_reloaded(&mut self, why: String, now: Timestamp) {
        let (stream, plugin) = self.names();
        self.last_reload = Some(LastReload { at: now.system_time(), refused: Some(why.clone()) });
        let text = format!("the component before stays: {why}");
        self.health.degraded(&self.reload_key(), text, now.system_time());
        self.counters.reloads.add(ReloadResult::Failed, 1);
        self.telemetry.publish(PluginReloadFailed { stream, plugin, why });
    }

    /// Between two batches: an instance of another component, or with other settings or grants, becomes the successor.
    pub fn replace(&mut self, setup: PluginSetup, context: ChainContext<'_>) {
        let PluginSetup { config, settings, instance } = setup;
        self.treat(&config, context.now);
        self.swap(instance, settings, context);
    }

    /// The state that the instance exports, where both versions have the calls. A fault is one like any other between two
    /// batches: a fresh instance of the old version goes on.
    fn hand_over(&mut self, next: &Plugin, context: ChainContext<'_>) -> Option<Handed> {
        if !next.component().description().wants.contains(CallSet::STATE) {
            return None;
        }
        let state = self.tell(context, Plugin::export_state)??;
        Some(Handed { version: self.component.description().version.clone(), state })
    }
}
