//! Puts all token ids of the request so far into each row, for a reader that keeps only the last row.
//!
//! The plugin stores the ids of every live request. Its README gives the costs and the exceptions.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, IdShape, Opened, Plugin, RequestId, RequestIs, Requests, Row,
    StateError, TokenId, Verdicts,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Conditions; a request that matches any of them gets cumulative ids. Without a condition every request
    /// does. All other requests stay unchanged.
    #[serde(default)]
    rules: Vec<RequestIs>,
}

/// The plugin that makes ids cumulative.
pub struct DeltaToCumulative {
    rules: Vec<RequestIs>,
    requests: Requests<RequestIds>,
    /// Set once the log says that this stream is already cumulative.
    logged_cumulative: bool,
}

enum RequestIds {
    /// The request's rows are deltas. These are its ids so far.
    Cumulative(Vec<TokenId>),
    /// The request's rows stay unchanged.
    Unchanged,
}

impl Plugin for DeltaToCumulative {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::COMPLETION_TOKENS);
    const WANTS: Calls = Calls::STATE;
    const WRITES: IdShape = IdShape::Cumulative;

    fn new(Settings { rules }: Settings) -> Result<Self, ConfigureError> {
        Ok(Self { rules, requests: Requests::new(), logged_cumulative: false })
    }

    fn opened(&mut self, request: &Opened) {
        // The previous instance exported this request.
        if self.requests.get(request.request).is_some() {
            return;
        }
        let is_selected = self.rules.is_empty() || self.rules.iter().any(|rule| rule.fits(request));
        let state = if !is_selected {
            RequestIds::Unchanged
        } else if request.received_tokens > 0 {
            let tokens = request.received_tokens;
            afterbay_plugin::warn!(
                request: request.request,
                "rows stay unchanged: the first {tokens} ids came before this instance, which does not know them"
            );
            RequestIds::Unchanged
        } else {
            RequestIds::Cumulative(Vec::new())
        };
        self.requests.insert(request.request, state);
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let Some(request) = self.requests.get_mut(row.request()) else { continue };
            let RequestIds::Cumulative(ids) = request else { continue };
            if is_cumulative(row, ids.len()) {
                *request = RequestIds::Unchanged;
                if !self.logged_cumulative {
                    self.logged_cumulative = true;
                    afterbay_plugin::info!(
                        request: row.request(),
                        "this stream is already cumulative: its rows stay unchanged"
                    );
                }
                continue;
            }
            let is_first = ids.is_empty();
            ids.extend_from_slice(row.ids());
            // The first ids are all ids so far: such a row is already right.
            if !is_first {
                verdicts.replace(row, ids.as_slice());
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }

    /// For each request: its number, the count of its ids and the ids, all as 64-bit little-endian words. The
    /// count of an unchanged request is `UNCHANGED`.
    fn export_state(&mut self) -> Vec<u8> {
        let mut state = Vec::new();
        for (request, ids) in self.requests.iter() {
            let (count, ids): (u64, &[TokenId]) = match ids {
                RequestIds::Cumulative(ids) => (ids.len() as u64, ids),
                RequestIds::Unchanged => (UNCHANGED, &[]),
            };
            state.extend_from_slice(&request.to_le_bytes());
            state.extend_from_slice(&count.to_le_bytes());
            ids.iter().for_each(|id| state.extend_from_slice(&id.to_le_bytes()));
        }
        state
    }

    fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        // No earlier version exports state.
        if version != env!("CARGO_PKG_VERSION") {
            return Err(StateError::UnknownVersion);
        }
        let (words, rest) = state.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut requests = Requests::new();
        while let Some(request) = words.next() {
            let ids = match words.next().ok_or(StateError::Corrupt)? {
                UNCHANGED => RequestIds::Unchanged,
                count => {
                    let ids = words.by_ref().take(count as usize).map(u64::cast_signed);
                    let ids: Vec<TokenId> = ids.collect();
                    if ids.len() as u64 != count {
                        return Err(StateError::Corrupt);
                    }
                    RequestIds::Cumulative(ids)
                }
            };
            requests.insert(request, ids);
        }
        if !rest.is_empty() {
            return Err(StateError::Corrupt);
        }
        self.requests = requests;
        Ok(())
    }
}

/// The count of an unchanged request in an exported state.
const UNCHANGED: u64 = u64::MAX;

/// Whether a row already has all ids so far: there were ids before, and the row has as many ids as the
/// request has tokens.
fn is_cumulative(row: Row<'_>, ids_before: usize) -> bool {
    let ids = row.ids().len();
    ids_before > 0 && ids > 0 && row.completion_tokens() == Some(ids as u64)
}

afterbay_plugin::export!(DeltaToCumulative);

#[cfg(test)]
mod tests {
    use afterbay_plugin::testing::{Harness, TestRow};
    use afterbay_plugin::{Action, FinishKind, Level, Replacement, Verdict};

    use super::*;

    fn plugin() -> Harness<DeltaToCumulative> {
        Harness::new("{}").unwrap()
    }

    fn row(request: RequestId, ids: &[TokenId], completion_tokens: u64) -> TestRow {
        TestRow::new(request).ids(ids).completion_tokens(completion_tokens)
    }

    fn replaced(row: u32, ids: &[TokenId]) -> Verdict {
        Verdict { row, action: Action::Replace(Replacement { ids: ids.to_vec(), text: None }) }
    }

    /// A request that began before this instance, with this many tokens.
    fn resumed(received_tokens: u64) -> Opened {
        Opened {
            request: 1,
            rid: "r".to_owned(),
            front_end: String::new(),
            sink: String::new(),
            arrived_ms: 0,
            prompt_tokens: 5,
            received_tokens,
            resumed: true,
        }
    }

    #[test]
    fn each_row_has_all_ids_so_far() {
        let mut plugin = plugin();
        plugin.open(1);
        plugin.open(2);
        assert_eq!(plugin.process(&[row(1, &[10], 1), row(2, &[20, 21], 2)]), []);
        assert_eq!(
            plugin.process(&[row(2, &[22], 3), row(1, &[11], 2)]),
            [replaced(0, &[20, 21, 22]), replaced(1, &[10, 11])]
        );
        assert_eq!(plugin.process(&[row(1, &[12, 13], 4)]), [replaced(0, &[10, 11, 12, 13])]);
        assert_eq!(plugin.logged(), []);
    }

    #[test]
    fn a_last_row_without_new_ids_has_all_ids_too() {
        let mut plugin = plugin();
        plugin.open(1);
        plugin.process(&[row(1, &[10, 11], 2)]);
        let last = row(1, &[], 2).finish(FinishKind::Stop);
        assert_eq!(plugin.process(&[last]), [replaced(0, &[10, 11])]);
    }

    #[test]
    fn a_request_whose_first_row_is_empty_begins_with_its_first_ids() {
        let mut plugin = plugin();
        plugin.open(1);
        assert_eq!(plugin.process(&[row(1, &[], 0)]), []);
        assert_eq!(plugin.process(&[row(1, &[10], 1)]), []);
        assert_eq!(plugin.process(&[row(1, &[11], 2)]), [replaced(0, &[10, 11])]);
    }

    #[test]
    fn a_cumulative_stream_stays_unchanged_and_is_logged_once() {
        let mut plugin = plugin();
        plugin.open(1);
        plugin.open(2);
        assert_eq!(plugin.process(&[row(1, &[10], 1), row(2, &[20], 1)]), []);
        assert_eq!(plugin.process(&[row(1, &[10, 11], 2), row(2, &[20, 21], 2)]), []);
        assert_eq!(plugin.process(&[row(1, &[10, 11, 12], 3)]), []);
        let logged = plugin.logged();
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert_eq!((logged[0].level, logged[0].request), (Level::Info, Some(1)));
    }

    #[test]
    fn with_rules_only_matching_requests_get_all_ids() {
        let rules = r#"{"rules": [{"rid_prefix": "old-"}, {"rid_prefix": "o", "front_end": "ipc:///w1"}, {"sink": "s"}]}"#;
        let mut plugin = Harness::<DeltaToCumulative>::new(rules).unwrap();
        let requests = [
            ("old-1", "", "", true),
            ("other", "ipc:///w1", "", true),
            ("other", "", "t", false),
            ("new", "ipc:///w1", "", false),
            ("new", "", "s", true),
        ];
        for (request, (rid, worker, sink, fits)) in (1..).zip(requests) {
            let (front_end, sink) = (worker.to_owned(), sink.to_owned());
            plugin.open_as(Opened {
                request,
                rid: rid.to_owned(),
                front_end,
                sink,
                resumed: false,
                ..resumed(0)
            });
            plugin.process(&[row(request, &[10], 1)]);
            let all = fits.then(|| replaced(0, &[10, 11]));
            assert_eq!(plugin.process(&[row(request, &[11], 2)]), Vec::from_iter(all), "{rid} {worker}");
        }
        assert_eq!(plugin.logged(), []);
    }

    #[test]
    fn a_request_with_a_missed_beginning_stays_unchanged_and_is_logged() {
        let mut plugin = plugin();
        plugin.open_as(resumed(3));
        assert_eq!(plugin.process(&[row(1, &[13], 4)]), []);
        assert_eq!(plugin.process(&[row(1, &[14], 5)]), []);
        let logged = plugin.logged();
        assert_eq!((logged.len(), logged[0].level, logged[0].request), (1, Level::Warn, Some(1)));
        assert!(logged[0].message.contains("first 3 ids"), "{}", logged[0].message);
    }

    #[test]
    fn a_request_resumed_before_its_first_token_gets_all_ids() {
        let mut plugin = plugin();
        plugin.open_as(resumed(0));
        plugin.process(&[row(1, &[10], 1)]);
        assert_eq!(plugin.process(&[row(1, &[11], 2)]), [replaced(0, &[10, 11])]);
    }

    #[test]
    fn after_a_reload_the_new_instance_has_the_ids_of_the_old_one() {
        let mut before = plugin();
        before.open(1);
        before.process(&[row(1, &[10, -11], 2)]);
        before.open_as(Opened { request: 2, ..resumed(3) });
        let state = before.export_state();
        let mut after = plugin();
        after.import_state("0.1.0", &state).unwrap();
        after.open_as(resumed(2));
        after.open_as(Opened { request: 2, ..resumed(3) });
        assert_eq!(after.process(&[row(1, &[12], 3), row(2, &[9], 4)]), [replaced(0, &[10, -11, 12])]);
        assert_eq!(after.import_state("0.0.9", &state), Err(StateError::UnknownVersion));
        for cut in [1, 8, state.len() - 1] {
            assert_eq!(after.import_state("0.1.0", &state[..cut]), Err(StateError::Corrupt), "at {cut}");
        }
    }

    #[test]
    fn a_closed_request_is_forgotten() {
        let mut plugin = plugin();
        plugin.open(1);
        plugin.process(&[row(1, &[10], 1)]);
        plugin.close(1);
        assert_eq!(plugin.process(&[row(1, &[11], 2)]), []);
    }

    #[test]
    fn an_unknown_setting_is_refused() {
        assert!(Harness::<DeltaToCumulative>::new(r#"{"x": 1}"#).is_err());
    }
}
