//! Gives each row all of its request's token ids so far, for a reader that keeps only the last row it has seen.
//!
//! Keeps the ids of every live request. What it costs, and what it leaves alone, is in its README.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, IdShape, Opened, Plugin, RequestId, RequestIs, Requests, Row,
    StateError, TokenId, Verdicts,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// Which requests are given all ids so far.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Those that fit any of these; without a rule, all. The others go on as they came.
    #[serde(default)]
    rules: Vec<RequestIs>,
}

/// The plugin.
pub struct DeltaToCumulative {
    rules: Vec<RequestIs>,
    requests: Requests<Request>,
    /// Whether the log knows that this stream is cumulative by itself.
    told: bool,
}

enum Request {
    /// Its rows are deltas, as far as one can tell: these are its ids so far.
    Kept(Vec<TokenId>),
    /// Its rows go on as they are.
    LeftAlone,
}

impl Plugin for DeltaToCumulative {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::COMPLETION_TOKENS);
    const WANTS: Calls = Calls::STATE;
    const WRITES: IdShape = IdShape::Cumulative;

    fn new(Settings { rules }: Settings) -> Result<Self, ConfigureError> {
        Ok(Self { rules, requests: Requests::new(), told: false })
    }

    fn opened(&mut self, request: &Opened) {
        // The instance before this one knew it.
        if self.requests.get(request.request).is_some() {
            return;
        }
        let is_meant = self.rules.is_empty() || self.rules.iter().any(|rule| rule.fits(request));
        let state = if !is_meant {
            Request::LeftAlone
        } else if request.received_tokens > 0 {
            let tokens = request.received_tokens;
            afterbay_plugin::warn!(
                request: request.request,
                "left as it is: its first {tokens} ids came before this instance and are not known to it"
            );
            Request::LeftAlone
        } else {
            Request::Kept(Vec::new())
        };
        self.requests.insert(request.request, state);
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let Some(request) = self.requests.get_mut(row.request()) else { continue };
            let Request::Kept(ids) = request else { continue };
            if is_cumulative(row, ids.len()) {
                *request = Request::LeftAlone;
                if !self.told {
                    self.told = true;
                    afterbay_plugin::info!(
                        request: row.request(),
                        "this stream is cumulative already: its requests are left as they are"
                    );
                }
                continue;
            }
            let is_first = ids.is_empty();
            ids.extend_from_slice(row.ids());
            // The first ids of a request are all of its ids: such a row is right as it is.
            if !is_first {
                verdicts.replace(row, ids.as_slice());
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }

    /// Each request: its number, how many ids there are, and these; `LEFT_ALONE` of one that is left alone.
    fn export_state(&mut self) -> Vec<u8> {
        let mut state = Vec::new();
        for (request, kept) in self.requests.iter() {
            let (count, ids): (u64, &[TokenId]) = match kept {
                Request::Kept(ids) => (ids.len() as u64, ids),
                Request::LeftAlone => (LEFT_ALONE, &[]),
            };
            state.extend_from_slice(&request.to_le_bytes());
            state.extend_from_slice(&count.to_le_bytes());
            ids.iter().for_each(|id| state.extend_from_slice(&id.to_le_bytes()));
        }
        state
    }

    fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        // This is the first version that exports any.
        if version != env!("CARGO_PKG_VERSION") {
            return Err(StateError::UnknownVersion);
        }
        let (words, rest) = state.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut requests = Requests::new();
        while let Some(request) = words.next() {
            let kept = match words.next().ok_or(StateError::Corrupt)? {
                LEFT_ALONE => Request::LeftAlone,
                count => {
                    let ids = words.by_ref().take(count as usize).map(u64::cast_signed);
                    let ids: Vec<TokenId> = ids.collect();
                    if ids.len() as u64 != count {
                        return Err(StateError::Corrupt);
                    }
                    Request::Kept(ids)
                }
            };
            requests.insert(request, kept);
        }
        if !rest.is_empty() {
            return Err(StateError::Corrupt);
        }
        self.requests = requests;
        Ok(())
    }
}

/// The count of a request that is left alone, in a state.
const LEFT_ALONE: u64 = u64::MAX;

/// A row with as many ids as the request has tokens, when there were ids before: they are among these.
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

    /// A request that was there before, with so many tokens.
    fn resumed(received_tokens: u64) -> Opened {
        Opened {
            request: 1,
            rid: "r".to_owned(),
            http_worker_ipc: String::new(),
            sink: String::new(),
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
    fn a_last_row_without_ids_has_them_all_too() {
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
    fn a_stream_that_is_cumulative_already_is_left_alone_and_told_once() {
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
    fn with_rules_only_the_requests_that_fit_one_are_given_all_ids() {
        let rules = r#"{"rules": [{"rid_prefix": "old-"}, {"rid_prefix": "o", "http_worker_ipc": "ipc:///w1"}, {"sink": "s"}]}"#;
        let mut plugin = Harness::<DeltaToCumulative>::new(rules).unwrap();
        let requests = [
            ("old-1", "", "", true),
            ("other", "ipc:///w1", "", true),
            ("other", "", "t", false),
            ("new", "ipc:///w1", "", false),
            ("new", "", "s", true),
        ];
        for (request, (rid, worker, sink, fits)) in (1..).zip(requests) {
            let (http_worker_ipc, sink) = (worker.to_owned(), sink.to_owned());
            plugin.open_as(Opened {
                request,
                rid: rid.to_owned(),
                http_worker_ipc,
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
    fn a_request_whose_beginning_was_missed_is_left_alone_and_told() {
        let mut plugin = plugin();
        plugin.open_as(resumed(3));
        assert_eq!(plugin.process(&[row(1, &[13], 4)]), []);
        assert_eq!(plugin.process(&[row(1, &[14], 5)]), []);
        let logged = plugin.logged();
        assert_eq!((logged.len(), logged[0].level, logged[0].request), (1, Level::Warn, Some(1)));
        assert!(logged[0].message.contains("first 3 ids"), "{}", logged[0].message);
    }

    #[test]
    fn a_request_that_was_resumed_before_its_first_token_is_served() {
        let mut plugin = plugin();
        plugin.open_as(resumed(0));
        plugin.process(&[row(1, &[10], 1)]);
        assert_eq!(plugin.process(&[row(1, &[11], 2)]), [replaced(0, &[10, 11])]);
    }

    #[test]
    fn the_instance_after_a_reload_goes_on_with_the_ids_of_the_one_before() {
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
    fn it_takes_no_settings() {
        assert!(Harness::<DeltaToCumulative>::new(r#"{"x": 1}"#).is_err());
    }
}
