//! State by drain: instances that go on with the requests they have, while another has taken over for those that begin.
//!
//! Owns which instance has which request. When one is added, and what becomes of a fault, is the seat's.

use crate::columns::{Rows, union};
use afterbay_runtime::{ColumnSet, Columns, Fault, LogLine, Plugin, Verdict};
use std::collections::{HashMap, HashSet};

/// So many go on at once; with one more the oldest ends, and its requests are told of as after a fault.
const INSTANCES_MAX: usize = 3;

/// Instances that had been there before, oldest first.
#[derive(Default)]
pub(crate) struct Drains(Vec<Drain>);

struct Drain {
    plugin: Plugin,
    requests: HashSet<u64>,
}

impl Drain {
    /// The instance goes. The requests that it had.
    fn retire(self) -> HashSet<u64> {
        self.plugin.retire();
        self.requests
    }
}

/// What all instances of a plugin say of a batch.
pub(crate) struct Heard {
    /// Sorted by row. A fault is that of the one that has taken over.
    pub(crate) verdicts: Result<Vec<Verdict>, Fault>,
    /// What others have died of, and the requests that each had.
    pub(crate) died: Vec<(Fault, HashSet<u64>)>,
}

impl Drains {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more goes on with these requests. What an instance had that ends for it comes back.
    pub(crate) fn add(&mut self, plugin: Plugin, requests: HashSet<u64>) -> HashSet<u64> {
        if !requests.is_empty() {
            self.0.push(Drain { plugin, requests });
        }
        match self.0.len() > INSTANCES_MAX {
            true => self.0.remove(0).retire(),
            false => HashSet::new(),
        }
    }

    /// All that the instances want to see.
    pub(crate) fn wants(&self, live: ColumnSet) -> ColumnSet {
        self.0.iter().map(|drain| drain.plugin.wants()).fold(live, union)
    }

    /// Whether one of them has the request.
    pub(crate) fn has(&self, request: u64) -> bool {
        self.0.iter().any(|drain| drain.requests.contains(&request))
    }

    /// Shows each its own rows, and the rest to the one that has taken over.
    pub(crate) fn judge(&mut self, columns: &Columns<'_>, live: &mut Plugin) -> Heard {
        let mut owner: HashMap<u64, usize> = HashMap::new();
        for (at, drain) in self.0.iter().enumerate() {
            owner.extend(drain.requests.iter().map(|request| (*request, at)));
        }
        // One more for those of the live one.
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.0.len() + 1];
        for (row, request) in (0..).zip(columns.requests) {
            rows[owner.get(request).copied().unwrap_or(self.0.len())].push(row);
        }
        let mut verdicts = Vec::new();
        let mut died = Vec::new();
        for (at, rows) in rows.iter().enumerate().take(self.0.len()).rev() {
            match ask(&mut self.0[at].plugin, columns, rows) {
                Ok(said) => verdicts.extend(said),
                Err(fault) => died.push((fault, self.0.remove(at).requests)),
            }
        }
        let said = rows.last().map_or(Ok(Vec::new()), |rows| ask(live, columns, rows));
        let verdicts = said.map(|said| {
            verdicts.extend(said);
            verdicts.sort_by_key(|verdict| verdict.row);
            verdicts
        });
        Heard { verdicts, died }
    }

    /// Tells each of its requests that have ended; one that has none left ends. Those that are not theirs come back, and what
    /// instances have died of, with the requests that they still had.
    pub(crate) fn close(&mut self, requests: &[u64]) -> (Vec<u64>, Vec<(Fault, HashSet<u64>)>) {
        let mut others = requests.to_vec();
        let mut died = Vec::new();
        for at in (0..self.0.len()).rev() {
            let drain = &mut self.0[at];
            let ended: Vec<u64> =
                requests.iter().copied().filter(|request| drain.requests.remove(request)).collect();
            if ended.is_empty() {
                continue;
            }
            others.retain(|request| !ended.contains(request));
            if let Err(fault) = drain.plugin.close(&ended) {
                died.push((fault, self.0.remove(at).requests));
            } else if drain.requests.is_empty() {
                self.0.remove(at).retire();
            }
        }
        (others, died)
    }

    /// The instance that has the request.
    pub(crate) fn of(&mut self, request: u64) -> Option<&mut Plugin> {
        self.0.iter_mut().find(|drain| drain.requests.contains(&request)).map(|drain| &mut drain.plugin)
    }

    /// What they have logged.
    pub(crate) fn drain_log(&mut self) -> Vec<LogLine> {
        self.0.iter_mut().flat_map(|drain| drain.plugin.drain_log()).collect()
    }

    /// All of them end.
    pub(crate) fn end(&mut self) {
        self.0.drain(..).for_each(|drain| _ = drain.retire());
    }
}

/// What an instance says of some of the rows, as they stand in the batch.
pub(crate) fn ask(plugin: &mut Plugin, columns: &Columns<'_>, rows: &[u32]) -> Result<Vec<Verdict>, Fault> {
    if rows.len() == columns.requests.len() {
        return plugin.process(columns);
    }
    let picked = Rows::pick(columns, rows, plugin.wants());
    let mut said = picked.show(|picked| plugin.process(picked))?;
    for verdict in &mut said {
        verdict.row = rows.get(verdict.row as usize).copied().unwrap_or(verdict.row);
    }
    Ok(said)
}
