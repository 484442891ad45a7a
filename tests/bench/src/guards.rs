//! The cost per row of each bundled plugin beside that of `floor`, which reads every column and says nothing.
//!
//! A case has rows in which the plugin finds nothing, and rows in which it finds something. A new plugin adds its case to
//! [`CASES`].

use afterbay_plugin_loader::{ModelTokens, PluginStore, Source};
use afterbay_runtime::{
    Action, Columns, Component, FinishKind, Grants, Host, HostOptions, Limits, Opened, OwnedColumns,
    PlainValues, Plugin, RowFacts, Terms, TokenId, Tokens,
};
use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows per batch: one for each live request.
const ROWS: u64 = 1024;
/// Batches of a round. Each round has a fresh instance.
const STEPS: u64 = 64;
/// The steps between two findings of a request.
const FINDS_EVERY: u64 = 16;

/// Prose without private data.
const USUAL_TEXT: &str = include_str!("../../../plugins/match-text/src/sample.txt");
/// Text in which most words are private data.
const PRIVATE_TEXT: &str = "Mail anna.lee@example.com or call +49 30 1234567, card 4111 1111 1111 1111. ";

/// A plugin with settings, and the rows that it is measured with.
pub(crate) struct GuardCase {
    /// The name after `builtin:`.
    plugin: &'static str,
    /// The difference to other cases of the plugin; empty if there is one case.
    what: &'static str,
    /// JSON.
    settings: &'static str,
    /// Rows in which it finds nothing; `None` if the plugin acts on every row.
    quiet: Option<fn(&Model, Place) -> Content>,
    /// Rows in which it finds something, in every request each [`FINDS_EVERY`] steps.
    finds: fn(&Model, Place) -> Content,
}

impl GuardCase {
    /// The plugin, and which of its cases this is.
    pub(crate) fn name(&self) -> String {
        [self.plugin, self.what]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// The bundled plugins.
pub(crate) const CASES: &[GuardCase] = &[
    GuardCase {
        plugin: "budget",
        what: "counts a tenant",
        settings: r#"{"tokens": 9000000000000000}"#,
        quiet: None,
        finds: |_, place| place.noise(),
    },
    GuardCase {
        plugin: "budget",
        what: "ends requests at 16 tokens",
        settings: r#"{"request_tokens": 16}"#,
        quiet: None,
        finds: |_, place| place.noise(),
    },
    GuardCase {
        plugin: "delta-to-cumulative",
        what: "",
        settings: "{}",
        quiet: None,
        finds: |_, place| place.noise(),
    },
    GuardCase {
        plugin: "grammar-check",
        what: "json schema",
        settings: r#"{"grammar": {"json_schema": "{\"type\": \"object\"}"}, "on_violation": "finish"}"#,
        quiet: Some(|model, place| model.token(place, &["{\"text\": \""], "a")),
        finds: |model, place| match place.finds() {
            true => model.token(place, &[], "\n"),
            false => model.token(place, &["{\"text\": \""], "a"),
        },
    },
    GuardCase {
        plugin: "match-text",
        what: "6 words",
        settings: r#"{"words": ["bomb", "poison", "cocaine", "grenade", "murder", "kidnap"]}"#,
        quiet: Some(|model, place| model.text(place, USUAL_TEXT)),
        finds: |model, place| model.text(place, "The bomb stands beside the poison. "),
    },
    GuardCase {
        plugin: "match-text",
        what: "card, iban, phone, ip",
        settings: r#"{"presets": ["card", "iban", "phone", "ip"]}"#,
        quiet: Some(|model, place| model.text(place, USUAL_TEXT)),
        finds: |model, place| model.text(place, PRIVATE_TEXT),
    },
    GuardCase {
        plugin: "match-text",
        what: "all presets",
        settings: r#"{"presets": ["email", "card", "iban", "phone", "api-key", "ip"]}"#,
        quiet: Some(|model, place| model.text(place, USUAL_TEXT)),
        finds: |model, place| model.text(place, PRIVATE_TEXT),
    },
    GuardCase {
        plugin: "moderate",
        what: "no answer comes",
        settings: r#"{"endpoint": "moderation"}"#,
        quiet: None,
        finds: |model, place| model.text(place, USUAL_TEXT),
    },
    GuardCase {
        plugin: "skip-text",
        what: "",
        settings: r#"{"rules": [{"rid_prefix": "finds-"}]}"#,
        quiet: Some(|_, place| place.noise()),
        finds: |_, place| place.noise(),
    },
    GuardCase {
        plugin: "stop-loop",
        what: "",
        settings: "{}",
        quiet: Some(|_, place| place.noise()),
        // Eight ids over and over are a loop at the last step.
        finds: |_, place| Content { ids: vec![(place.step % 8) as TokenId], text: String::new() },
    },
];

/// The place of a row: its request, and the number of its step in the life of that request.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    request: u64,
    step: u64,
}

impl Place {
    /// Whether the row has something to find.
    fn finds(self) -> bool {
        // The requests do not all find something in the same batch.
        (self.step + self.request) % FINDS_EVERY == FINDS_EVERY - 1
    }

    /// A token without a pattern.
    fn noise(self) -> Content {
        let mut mixed =
            self.request.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.step.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
        Content {
            ids: vec![(mixed.wrapping_mul(0x94d0_49bb_1331_11eb) >> 48) as TokenId],
            text: String::new(),
        }
    }
}

/// The content of a row.
#[derive(Clone)]
pub(crate) struct Content {
    ids: Vec<TokenId>,
    text: String,
}

/// A small model with the vocabulary of a test.
pub(crate) struct Model {
    tokens: Arc<ModelTokens>,
    known: std::cell::RefCell<BTreeMap<String, Vec<TokenId>>>,
}

impl Model {
    fn load() -> anyhow::Result<Model> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../host/path/text/tests/fixtures/byte-level/tokenizer.json");
        let tokens = ModelTokens::load(&file).with_context(|| file.display().to_string())?;
        Ok(Model { tokens: Arc::new(tokens), known: std::cell::RefCell::default() })
    }

    /// The row of a request whose first rows have these texts, and each later row `then`.
    fn token(&self, place: Place, first: &[&str], then: &str) -> Content {
        let step = usize::try_from(place.step).unwrap_or(usize::MAX);
        let text = first.get(step).copied().unwrap_or(then);
        Content { ids: self.with_ids(text, <[TokenId]>::to_vec), text: text.to_owned() }
    }

    /// The row with the next token of this text. Each request begins at another place of the text and repeats the text.
    fn text(&self, place: Place, text: &str) -> Content {
        let at = usize::try_from(place.step + place.request * 37).unwrap_or_default();
        let ids = self.with_ids(text, |ids| vec![ids[at % ids.len()]]);
        Content { text: String::from_utf8_lossy(self.tokens.bytes(ids[0])).into_owned(), ids }
    }

    /// Calls `read` with the ids of a text, which are encoded once.
    fn with_ids<R>(&self, text: &str, read: impl FnOnce(&[TokenId]) -> R) -> R {
        let mut known = self.known.borrow_mut();
        if !known.contains_key(text) {
            known.insert(text.to_owned(), self.tokens.encode(text).unwrap_or_default());
        }
        read(&known[text])
    }
}

/// The costs of one case, in nanoseconds per row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) ns: f64,
    pub(crate) cpu_ns: f64,
    /// The share of rows with a verdict.
    pub(crate) verdicts: f64,
    /// The share of held rows.
    pub(crate) held: f64,
}

/// The costs of a plugin and of the floor.
pub(crate) struct GuardCosts {
    pub(crate) floor: Cost,
    pub(crate) quiet: Option<Cost>,
    pub(crate) finds: Cost,
}

/// The host and the model of the measurement.
pub(crate) struct Guards {
    host: Host,
    model: Model,
}

impl Guards {
    pub(crate) fn new() -> anyhow::Result<Guards> {
        Ok(Guards { host: Host::new(HostOptions::default())?, model: Model::load()? })
    }

    /// Measures a case: rounds of the floor, of quiet rows and of rows with findings take turns for `time`.
    pub(crate) fn measure(&self, case: &GuardCase, time: Duration) -> anyhow::Result<GuardCosts> {
        let (guard, floor) = (self.load(case.plugin)?, self.load("floor")?);
        let quiet = case.quiet.map(|rows| ("quiet-", rows));
        let (mut floors, mut quiets, mut finds) = (Vec::new(), Vec::new(), Vec::new());
        let until = Instant::now() + time;
        while finds.is_empty() || Instant::now() < until {
            floors.push(self.round(&floor, "{}", "quiet-", case.quiet.unwrap_or(case.finds))?);
            if let Some((rid, rows)) = quiet {
                quiets.push(self.round(&guard, case.settings, rid, rows)?);
            }
            finds.push(self.round(&guard, case.settings, "finds-", case.finds)?);
        }
        let floor = fastest(&floors).context("no round of the floor")?;
        let finds = fastest(&finds).context("no round with findings")?;
        Ok(GuardCosts { floor, quiet: fastest(&quiets), finds })
    }

    fn load(&self, name: &str) -> anyhow::Result<Component> {
        let limits = Limits { memory_bytes: 1 << 30, deadline: Duration::from_secs(10), ..Limits::default() };
        let tokenizer: Arc<dyn Tokens> = self.model.tokens.clone();
        let grants = Grants {
            metrics: Some(Arc::new(())),
            health: true,
            call: true,
            store: Some(Arc::new(PluginStore::in_memory())),
            signals: true,
            request: true,
            tokenizer: Some(tokenizer),
            ..Grants::default()
        };
        let source = Source::find(&format!("builtin:{name}"), Path::new(""))?;
        Ok(source.load(&self.host, Terms { limits, grants, ..Terms::default() })?)
    }

    /// Shows [`STEPS`] batches to a fresh instance. The time of `open` and `close` does not count, and a request that the plugin
    /// ends is followed by another.
    fn round(
        &self,
        component: &Component,
        settings: &str,
        rid: &str,
        rows: fn(&Model, Place) -> Content,
    ) -> anyhow::Result<Cost> {
        let mut plugin = component.instantiate(settings)?;
        let mut live: Vec<Place> = (1..=ROWS).map(|request| Place { request, step: 0 }).collect();
        let mut last = ROWS;
        let all: Vec<u64> = live.iter().map(|place| place.request).collect();
        open(&mut plugin, rid, &all)?;
        let (mut took, mut cpu, mut verdicts, mut held) = (Duration::ZERO, Duration::ZERO, 0_usize, 0_usize);
        let mut waiting = vec![0_u32; live.len()];
        for _ in 0..STEPS {
            let mut columns = OwnedColumns::default();
            for (place, waiting) in live.iter().zip(&waiting) {
                let Content { ids, text } = rows(&self.model, *place);
                let values = PlainValues {
                    completion_tokens: (place.step + 1) * ids.len() as u64,
                    finished: FinishKind::Running,
                    waiting: *waiting,
                    ..PlainValues::default()
                };
                columns.push(place.request, &ids, Some(&text), values, &RowFacts::default());
            }
            let strings = columns.strings();
            let columns: Columns<'_> = columns.columns(&strings);
            let (begun, cpu_begun) = (Instant::now(), processor_time());
            let said = plugin.process(&columns)?;
            cpu += processor_time().saturating_sub(cpu_begun);
            took += begun.elapsed();
            drop(plugin.drain_calls());
            verdicts += said.len();
            live.iter_mut().for_each(|place| place.step += 1);
            let mut ended = Vec::new();
            let mut now_waiting: Vec<u32> =
                waiting.iter().map(|waiting| waiting + u32::from(*waiting > 0)).collect();
            for verdict in said {
                let row = verdict.row as usize;
                match verdict.action {
                    Action::Hold(_) => {
                        now_waiting[row] = waiting[row] + 1;
                        held += 1;
                    }
                    Action::ReleaseAndHold(_) => {
                        now_waiting[row] = 1;
                        held += 1;
                    }
                    action if ends(&action) => {
                        now_waiting[row] = 0;
                        ended.push(row);
                    }
                    _ => now_waiting[row] = 0,
                }
            }
            waiting = now_waiting;
            let closed: Vec<u64> = ended.iter().map(|row| live[*row].request).collect();
            plugin.close(&closed)?;
            for row in &ended {
                last += 1;
                live[*row] = Place { request: last, step: 0 };
            }
            let opened: Vec<u64> = ended.iter().map(|row| live[*row].request).collect();
            open(&mut plugin, rid, &opened)?;
        }
        let rows = (ROWS * STEPS) as f64;
        Ok(Cost {
            ns: took.as_nanos() as f64 / rows,
            cpu_ns: cpu.as_nanos() as f64 / rows,
            verdicts: verdicts as f64 / rows,
            held: held as f64 / rows,
        })
    }
}

fn open(plugin: &mut Plugin, rid: &str, requests: &[u64]) -> anyhow::Result<()> {
    let rids: Vec<String> = requests.iter().map(|request| format!("{rid}{request:032x}")).collect();
    let opened = requests.iter().zip(&rids).map(|(request, rid)| Opened {
        request: *request,
        rid,
        front_end: "",
        sink: "",
        arrived_ms: 0,
        prompt_tokens: 64,
        received_tokens: 0,
        resumed: false,
    });
    Ok(plugin.open(&opened.collect::<Vec<_>>())?)
}

/// Whether a verdict ends the request.
fn ends(action: &Action) -> bool {
    matches!(action, Action::Finish(_))
}

/// The round with the least time, and the least processor time of any round.
fn fastest(rounds: &[Cost]) -> Option<Cost> {
    let cpu_ns = rounds.iter().map(|round| round.cpu_ns).fold(f64::INFINITY, f64::min);
    let fastest = rounds.iter().min_by(|a, b| a.ns.total_cmp(&b.ns))?;
    Some(Cost { cpu_ns, ..*fastest })
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}
