//! Another instance takes over from a plugin's: a changed component, other settings. What the one before it knows of live
//! requests goes over as the configuration says.

use super::{AGAIN, Seat};
use crate::PluginSetup;
use crate::about::Abouts;
use crate::columns::Begun;
use crate::drains;
use crate::ledger::{Accounted, Ledger};
use crate::replay::{Handed, Missed, Replayed};
use crate::resumed::{self, Resumed};
use crate::standing::LastReload;
use afterbay_config::{OnFault, State};
use afterbay_events::event::{PluginReloadFailed, PluginReloaded, PluginReplayed, PluginStateLost};
use afterbay_events::{Name, ReloadResult};
use afterbay_runtime::{ColumnSet, Columns, Digest, Fault, Opened, Plugin, ReloadError, Verdict};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

/// How often an instance is shown off the path what came while it was shown what came before. Each time it is less, by the
/// plugin's part of the stream's time; where that is all of it, the last time is on the path.
const ROUNDS_MAX: u32 = 16;

/// An instance that is to know of the live requests before it takes over.
pub(crate) struct Wanted {
    pub(crate) plugin: Name,
    /// Of those of this plugin: an earlier one that comes late is of no use.
    pub(crate) number: u64,
    pub(crate) instance: Plugin,
    pub(crate) behind: Behind,
    /// The plugins that are asked before it.
    pub(crate) before: HashSet<String>,
}

/// What an instance is yet to be shown.
pub(crate) enum Behind {
    /// All rows of these requests.
    All(Vec<Begun>),
    /// What the one before it knows, and then of these requests.
    Handed(Handed, Vec<Begun>),
    /// What came since it was shown so many rows.
    Since(Missed, u64),
}

/// What is kept for an instance that sees what has come before.
pub(super) struct Successor {
    digest: Digest,
    settings: String,
    /// It takes in what the one before it knew, so many bytes; else it is shown rows.
    handed_bytes: Option<u64>,
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
        self.keep(|missed| missed.closed(requests));
    }

    pub(super) fn changed(&mut self, request: u64, attributes: Option<Arc<str>>) {
        self.keep(|missed| missed.changed(request, attributes));
    }

    fn keep(&mut self, keep: impl FnOnce(&mut Missed) -> bool) {
        if !self.is_too_much && !keep(&mut self.missed) {
            (self.is_too_much, self.missed) = (true, Missed::default());
        }
    }
}

impl Seat {
    /// A changed component, compiled and configured off the path, takes over between two batches.
    pub(crate) fn reload(&mut self, reloaded: Result<Plugin, ReloadError>, ledger: &Ledger, abouts: &Abouts) {
        match reloaded {
            Ok(instance) => self.swap(instance, self.settings.clone(), ledger, abouts),
            Err(error) => self.not_reloaded(error.to_string()),
        }
    }

    /// Another instance takes over, with what the one before it knows. Between two batches only.
    fn swap(&mut self, instance: Plugin, settings: String, ledger: &Ledger, abouts: &Abouts) {
        // A later one takes the place of one that still waits.
        self.successor = None;
        match self.state {
            State::Replay if ledger.live() > 0 && self.plugin.is_some() => {
                self.wait(instance, settings, None, ledger, abouts)
            }
            State::Drain if self.can_drain(&instance) => self.drain(instance, settings, ledger, abouts),
            State::Migrate | State::Replay | State::Drain => match self.hand_over(&instance) {
                Some(Ok(handed)) => self.wait(instance, settings, Some(handed), ledger, abouts),
                Some(Err(fault)) => {
                    self.tell_state_lost(fault.to_string());
                    self.anew(instance, settings, ledger, abouts);
                }
                None => self.anew(instance, settings, ledger, abouts),
            },
        }
    }

    /// The new one takes over all requests and is told of them as after a fault.
    fn anew(&mut self, instance: Plugin, settings: String, ledger: &Ledger, abouts: &Abouts) {
        self.install(instance, settings);
        // Also those of instances that had gone on with theirs.
        self.drains.end();
        if let Some(instance) = self.plugin.take() {
            self.take_over(instance, &Resumed::now(ledger, abouts), ledger, abouts);
        }
        self.reloaded(ledger.live() as u64, 0);
    }

    /// The new one is there; it is yet to be told of requests.
    fn install(&mut self, instance: Plugin, settings: String) {
        (self.component, self.settings) = (instance.component().clone(), settings);
        if let Some(before) = self.plugin.replace(instance) {
            before.retire();
        }
        self.is_lost = true;
        self.faults.started();
        self.retry_at = None;
        self.last_reload = Some(LastReload { at: SystemTime::now(), refused: None });
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

    fn tell_state_lost(&self, why: String) {
        let (stream, plugin) = self.names();
        self.telemetry.publish(PluginStateLost { stream, plugin, why });
    }

    /// Verdicts of both must mean the same.
    fn can_drain(&self, next: &Plugin) -> bool {
        self.plugin.is_some() && next.component().description().writes == self.writes()
    }

    /// The one before it goes on with the requests it has.
    fn drain(&mut self, instance: Plugin, settings: String, ledger: &Ledger, abouts: &Abouts) {
        let alive: HashSet<u64> =
            self.alive(ledger, abouts).requests().iter().map(|opened| opened.request).collect();
        let orphans = match self.plugin.take() {
            Some(before) => self.drains.add(before, alive),
            None => alive,
        };
        let was_lost = self.is_lost;
        self.install(instance, settings);
        // What the one before it holds waits on.
        self.is_lost = was_lost;
        self.requests_open = 0;
        self.adopt(&orphans, Resumed::now(ledger, abouts), ledger, abouts);
        self.reloaded(orphans.len() as u64, 0);
    }

    /// Requests of instances that are no more: the one that has taken over is told of them. False where it cannot be.
    pub(super) fn adopt(
        &mut self,
        requests: &HashSet<u64>,
        resumed: Resumed<'_>,
        ledger: &Ledger,
        abouts: &Abouts,
    ) -> bool {
        if requests.is_empty() {
            return true;
        }
        self.lost.extend(requests);
        let resumed = resumed.without(|request| !requests.contains(&request));
        self.requests_open += resumed.requests().len() as u64;
        self.tell(ledger, abouts, |plugin| resumed::open(plugin, resumed.requests(), abouts))
    }

    /// Instances that had gone on with their requests have died over a batch: the one that has taken over has these now, too.
    /// What it says of their rows, where the batch is held.
    pub(super) fn inherit(
        &mut self,
        died: Vec<(Fault, HashSet<u64>)>,
        columns: &Columns<'_>,
        accounted: &Accounted,
        ledger: &Ledger,
        abouts: &Abouts,
    ) -> Vec<Verdict> {
        let is_held = self.policy() == OnFault::Hold;
        let then = if is_held { AGAIN } else { self.then() };
        let mut requests = HashSet::new();
        for (fault, of) in died {
            self.tell_fault(&fault, then);
            requests.extend(of);
        }
        let resumed = match is_held {
            true => Resumed::before(accounted, ledger, abouts),
            false => Resumed::now(ledger, abouts),
        };
        let is_told = self.adopt(&requests, resumed, ledger, abouts);
        let Some(plugin) = self.plugin.as_mut().filter(|_| is_held && is_told) else { return Vec::new() };
        self.counters.held_batches.add(1);
        let rows = (0..).zip(columns.requests).filter(|(_, request)| requests.contains(request));
        let said = drains::ask(plugin, columns, &rows.map(|(row, _)| row).collect::<Vec<u32>>());
        self.drain_log(ledger);
        said.unwrap_or_else(|fault| {
            self.fault(&fault, self.then());
            self.restart(&self.alive(ledger, abouts), ledger, abouts);
            Vec::new()
        })
    }

    /// The new one is to see what has come before, or to take in what is handed to it, and takes over then.
    fn wait(
        &mut self,
        instance: Plugin,
        settings: String,
        handed: Option<Handed>,
        ledger: &Ledger,
        abouts: &Abouts,
    ) {
        self.successors += 1;
        let resumed = Resumed::now(ledger, abouts);
        let requests = resumed.requests().iter().map(|opened| Begun::new(opened, abouts));
        let handed_bytes = handed.as_ref().map(|handed| handed.state.len() as u64);
        let behind = match handed {
            Some(handed) => Behind::Handed(handed, requests.collect()),
            None => Behind::All(requests.map(|begun| Begun { received_tokens: 0, ..begun }).collect()),
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
            wants,
            wanted: Some(wanted),
            missed: Missed::default(),
            is_too_much: false,
            rounds: 0,
        });
    }

    pub(crate) fn has_wanted(&self) -> bool {
        self.successor.as_ref().is_some_and(|successor| successor.wanted.is_some())
    }

    /// What is to be shown to the one that waits, once.
    pub(crate) fn wanted(&mut self) -> Option<Wanted> {
        self.successor.as_mut()?.wanted.take()
    }

    /// A batch came while one waits.
    pub(super) fn miss(&mut self, opened: &[Opened<'_>], columns: &Columns<'_>, abouts: &Abouts) {
        let Some(successor) = &mut self.successor else { return };
        if !opened.is_empty() {
            let begun = opened.iter().map(|opened| Begun::new(opened, abouts)).collect();
            successor.keep(|missed| missed.opened(begun));
        }
        let wants = successor.wants;
        successor.keep(|missed| missed.rows(columns, wants));
    }

    /// The one that waits has seen what came before.
    pub(crate) fn replayed(&mut self, number: u64, replayed: Replayed, ledger: &Ledger, abouts: &Abouts) {
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
        let Successor { settings, handed_bytes, missed, is_too_much, .. } = successor;
        instance.set_off_path(false);
        let shown = shown.and_then(|rows| match is_too_much {
            true => Err("more came meanwhile than is kept for it".to_owned()),
            false => missed.show(&mut instance).map(|more| rows + more),
        });
        match shown {
            Ok(rows) => {
                self.install(instance, settings);
                self.drains.end();
                let alive = self.alive(ledger, abouts).requests().len() as u64;
                self.requests_open = alive;
                self.drain_log(ledger);
                self.reloaded(alive, handed_bytes.unwrap_or(0));
                if handed_bytes.is_none() {
                    let (stream, plugin) = self.names();
                    self.telemetry.publish(PluginReplayed { stream, plugin, rows });
                }
            }
            Err(why) => {
                self.tell_state_lost(why);
                match instance.component().instantiate(&settings) {
                    Ok(fresh) => self.anew(fresh, settings, ledger, abouts),
                    Err(error) => self.not_reloaded(error.to_string()),
                }
            }
        }
    }

    fn not_reloaded(&mut self, why: String) {
        let (stream, plugin) = self.names();
        self.last_reload = Some(LastReload { at: SystemTime::now(), refused: Some(why.clone()) });
        let text = format!("the component before stays: {why}");
        self.health.degraded(&self.reload_key(), text, SystemTime::now());
        self.counters.reloads.add(ReloadResult::Failed, 1);
        self.telemetry.publish(PluginReloadFailed { stream, plugin, why });
    }

    /// Another component, other settings or grants, with what the one before it knows. Between two batches only.
    pub(crate) fn replace(&mut self, setup: PluginSetup, ledger: &Ledger, abouts: &Abouts) {
        let PluginSetup { config, settings, instance } = setup;
        self.treat(&config);
        self.swap(instance, settings, ledger, abouts);
    }

    /// What the instance knows of its requests, for the one that takes over. `None` where they have no such calls.
    fn hand_over(&mut self, next: &Plugin) -> Option<Result<Handed, Fault>> {
        let (before, version) = (self.plugin.as_mut()?, self.component.description().version.clone());
        if !next.component().description().wants.state {
            return None;
        }
        let state = before.export_state().transpose()?;
        Some(state.map(|state| Handed { version, state }))
    }
}
