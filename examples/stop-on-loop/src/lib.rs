//! A repetition guard: ends a request whose last ids are the same few ids over and over.

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, Opened, Plugin, RequestId, Requests, StateError, TokenId,
    Verdicts, bad_setting,
};

/// The settings of the plugin.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The number of a request's last ids that the plugin compares. Fewer ids are never a loop.
    window: usize,
    /// The number of times that a run of ids must fill the window. With 64 and 4, the plugin finds runs of 1
    /// to 16 ids.
    repeats: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { window: 64, repeats: 4 }
    }
}

/// The largest window. The plugin stores up to twice as many ids for each request, 8 bytes each.
const WINDOW_MAX: usize = 4096;

/// The largest window for which memory is reserved when a request opens.
const WINDOW_USUAL: usize = 128;

/// The plugin that ends loops.
pub struct StopOnLoop {
    window: usize,
    period_max: usize,
    /// The last ids of each request: at least `window` of them, once there are as many.
    requests: Requests<Vec<TokenId>>,
}

impl StopOnLoop {
    /// An empty list with enough room for a request's ids. Otherwise the lists of requests that begin
    /// together would all grow in one call.
    fn room(&self) -> Vec<TokenId> {
        Vec::with_capacity(2 * self.window.min(WINDOW_USUAL))
    }
}

impl Plugin for StopOnLoop {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;
    const WANTS: Calls = Calls::STATE;

    fn new(Settings { window, repeats }: Settings) -> Result<Self, ConfigureError> {
        if repeats < 2 {
            return Err(bad_setting("/repeats", format!("is {repeats}, must be 2 or more")));
        }
        if window < repeats || window > WINDOW_MAX {
            let message = format!("is {window}, must be from repeats ({repeats}) to {WINDOW_MAX}");
            return Err(bad_setting("/window", message));
        }
        Ok(Self { window, period_max: window / repeats, requests: Requests::new() })
    }

    fn opened(&mut self, request: &Opened) {
        // The previous instance may have exported this request.
        if self.requests.get(request.request).is_none() {
            self.requests.insert(request.request, self.room());
        }
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let Some(ids) = self.requests.get_mut(row.request()) else { continue };
            ids.extend_from_slice(row.ids());
            // The list is cut only at up to twice the window, so that an id does not move at every row. The
            // exact length differs between requests: otherwise the lists of requests that begin together
            // would all be cut in one call.
            if ids.len() >= 2 * self.window - row.request() as usize % self.window {
                ids.drain(..ids.len() - self.window);
            }
            if ids.len() < self.window {
                continue;
            }
            if let Some(period) = period_of(last(ids, self.window), self.period_max) {
                let window = self.window;
                afterbay_plugin::info!(request: row.request(), "stopped: its last {window} ids repeat {period}");
                // The reader sees the end now. Afterbay swallows what the scheduler still sends and closes the request.
                // A next row comes only if this row was a replay after a reload; it repeats the verdict.
                verdicts.finish(row, "stop-on-loop");
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }

    /// For each request: its number, the count of its ids and the ids (at most a window), all as 64-bit
    /// little-endian words.
    fn export_state(&mut self) -> Vec<u8> {
        let words: usize = self.requests.iter().map(|(_, ids)| 2 + last(ids, self.window).len()).sum();
        // The stream waits for this call, so that the list should not grow.
        let mut state = Vec::with_capacity(8 * words);
        for (request, ids) in self.requests.iter() {
            let ids = last(ids, self.window);
            state.extend_from_slice(&request.to_le_bytes());
            state.extend_from_slice(&(ids.len() as u64).to_le_bytes());
            ids.iter().for_each(|id| state.extend_from_slice(&id.to_le_bytes()));
        }
        state
    }

    fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        // No earlier version exports state.
        if version != env!("CARGO_PKG_VERSION") {
            return Err(StateError::UnknownVersion);
        }
        let (mut words, []) = state.as_chunks::<8>() else { return Err(StateError::Corrupt) };
        while let [request, count, rest @ ..] = words {
            let count = u64::from_le_bytes(*count) as usize;
            let (exported, rest) = rest.split_at_checked(count).ok_or(StateError::Corrupt)?;
            let mut ids = self.room();
            // The exporting instance may have had a larger window.
            ids.extend(last(exported, self.window).iter().map(|id| TokenId::from_le_bytes(*id)));
            self.requests.insert(u64::from_le_bytes(*request), ids);
            words = rest;
        }
        if !words.is_empty() {
            return Err(StateError::Corrupt);
        }
        Ok(())
    }
}

/// The last `count` items.
fn last<T>(all: &[T], count: usize) -> &[T] {
    &all[all.len().saturating_sub(count)..]
}

/// The length of the shortest run that these ids repeat from end to end, if it is at most `period_max`.
fn period_of(ids: &[TokenId], period_max: usize) -> Option<usize> {
    // This is fast: in ordinary text one of the first ids differs, for every period.
    (1..=period_max).find(|&period| ids.iter().rev().zip(ids.iter().rev().skip(period)).all(|(a, b)| a == b))
}

afterbay_plugin::export!(StopOnLoop);

#[cfg(test)]
mod tests {
    use afterbay_plugin::testing::{Harness, TestRow};
    use afterbay_plugin::{Action, Verdict};

    use super::*;

    /// The index of the row that ends a request of these ids, one in each row.
    fn finished_at(settings: &str, ids: impl IntoIterator<Item = TokenId>) -> Option<usize> {
        let mut plugin = Harness::<StopOnLoop>::new(settings).unwrap();
        plugin.open(1);
        ids.into_iter().position(|id| {
            let verdicts = plugin.process(&[TestRow::new(1).ids([id])]);
            let finish = Verdict { row: 0, action: Action::Finish("stop-on-loop".into()) };
            assert!(verdicts.is_empty() || verdicts == [finish]);
            !verdicts.is_empty()
        })
    }

    #[test]
    fn a_loop_ends_when_it_fills_the_window() {
        let text = 0..100;
        let looped = [7, 8, 9].into_iter().cycle().take(100);
        assert_eq!(finished_at(r#"{"window": 12, "repeats": 4}"#, text.chain(looped)), Some(100 + 11));
    }

    #[test]
    fn ordinary_text_does_not_end() {
        assert_eq!(finished_at("{}", (0..10_000).map(|i| i * i % 1009)), None);
    }

    #[test]
    fn a_run_longer_than_the_window_divided_by_repeats_is_no_loop() {
        let runs_of = |length: TokenId| (0..length).cycle().take(1000);
        assert_eq!(finished_at(r#"{"window": 64, "repeats": 4}"#, runs_of(17)), None);
        assert_eq!(finished_at(r#"{"window": 64, "repeats": 4}"#, runs_of(16)), Some(63));
    }

    #[test]
    fn all_ids_of_a_long_row_count() {
        let mut plugin = Harness::<StopOnLoop>::new("{}").unwrap();
        plugin.open(1);
        plugin.open(2);
        let rows = [TestRow::new(1).ids((0..500).collect::<Vec<_>>()), TestRow::new(2).ids([5; 500])];
        let verdicts = plugin.process(&rows);
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].row, 1);
        assert_eq!(plugin.logged()[0].message, "stopped: its last 64 ids repeat 1");
    }

    #[test]
    fn the_next_instance_imports_the_ids_of_each_request() {
        let new = || Harness::<StopOnLoop>::new(r#"{"window": 8, "repeats": 4}"#).unwrap();
        let mut before = new();
        before.open(1);
        before.open(2);
        assert_eq!(before.process(&[TestRow::new(1).ids([5; 5]), TestRow::new(2).ids([6; 2])]), []);
        let state = before.export_state();
        let mut after = new();
        after.import_state(env!("CARGO_PKG_VERSION"), &state).unwrap();
        after.open(1);
        after.open(2);
        let verdicts = after.process(&[TestRow::new(2).ids([6; 3]), TestRow::new(1).ids([5; 3])]);
        assert_eq!(verdicts, [Verdict { row: 1, action: Action::Finish("stop-on-loop".into()) }]);
        let mut narrow = Harness::<StopOnLoop>::new(r#"{"window": 4, "repeats": 4}"#).unwrap();
        narrow.import_state(env!("CARGO_PKG_VERSION"), &state).unwrap();
        assert_eq!(narrow.export_state().len(), 8 * (2 + 4 + 2 + 2), "it has the last four of five ids");
        assert_eq!(new().import_state("0.0.9", &state), Err(StateError::UnknownVersion));
        assert_eq!(
            new().import_state(env!("CARGO_PKG_VERSION"), &state[..state.len() - 8]),
            Err(StateError::Corrupt)
        );
        assert_eq!(new().import_state(env!("CARGO_PKG_VERSION"), &state[1..]), Err(StateError::Corrupt));
    }

    #[test]
    fn settings_out_of_range_are_refused_with_the_limit() {
        let refuse = |settings| Harness::<StopOnLoop>::new(settings).err().unwrap().message();
        assert_eq!(refuse(r#"{"repeats": 1}"#), "/repeats: is 1, must be 2 or more");
        assert_eq!(refuse(r#"{"window": 5000}"#), "/window: is 5000, must be from repeats (4) to 4096");
        assert!(refuse(r#"{"windw": 5}"#).contains("unknown field `windw`"));
    }
}
