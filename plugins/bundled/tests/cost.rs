//! The cost of match-text on usual text. Run it alone: `cargo test -p afterbay-bundled --test cost -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use afterbay_runtime::{
    Columns, EncodeError, FinishKind, Grants, Host, HostOptions, Limits, Opened, Terms, Tokens,
};

const TEXT: &str = include_str!("../../match-text/src/sample.txt");
const PRIVATE: &str = "Mail anna.lee@example.com or call +49 30 1234567, card 4111 1111 1111 1111. ";
const ALL: &str = r#"{"presets": ["email", "card", "iban", "phone", "api-key", "ip"]}"#;
const REQUESTS: u64 = 64;

/// The pieces of a text as tokens: words with the space before.
struct Pieces(Vec<Vec<u8>>);

impl Pieces {
    fn new(text: &str) -> Self {
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for byte in text.bytes() {
            match pieces.last_mut() {
                Some(piece) if byte.is_ascii_alphabetic() && piece.len() < 8 => piece.push(byte),
                _ => pieces.push(vec![byte]),
            }
        }
        Self(pieces)
    }
}

impl Tokens for Pieces {
    fn size(&self) -> u32 {
        self.0.len() as u32
    }

    fn bytes(&self, id: i64) -> &[u8] {
        usize::try_from(id).ok().and_then(|id| self.0.get(id)).map_or(&[], |piece| &piece[..])
    }

    fn special(&self) -> &[i64] {
        &[]
    }

    fn end_of_text(&self) -> &[i64] {
        &[]
    }

    fn encode(&self, _: &str) -> Result<Vec<i64>, EncodeError> {
        Ok(vec![0])
    }
}

/// The fuel and the time of a row, and the share of rows with a verdict.
fn cost(name: &str, component: &str, text: &str, settings: &str) {
    let bytes = afterbay_bundled::find(component).unwrap().component;
    let tokens = Arc::new(Pieces::new(text));
    let size = tokens.0.len();
    let limits = Limits { deadline: Duration::from_secs(10), ..Limits::default() };
    let grants = Grants { metrics: Some(Arc::new(())), tokenizer: Some(tokens), ..Grants::default() };
    let (mut figures, mut rows, mut verdicts) = (Vec::new(), 0, 0);
    for counts_fuel in [true, false] {
        let host = Host::new(HostOptions { counts_fuel, ..HostOptions::default() }).unwrap();
        let terms = Terms { limits: limits.clone(), grants: grants.clone(), digest: None };
        let mut plugin = host.load(name, bytes, terms).unwrap().instantiate(settings).unwrap();
        let requests: Vec<u64> = (0..REQUESTS).collect();
        let opened = |request: &u64| Opened {
            request: *request,
            rid: "r",
            http_worker_ipc: "",
            sink: "",
            prompt_tokens: 0,
            received_tokens: 0,
            resumed: false,
        };
        plugin.open(&requests.iter().map(opened).collect::<Vec<_>>()).unwrap();
        let (before, start) = (plugin.fuel_used().unwrap_or(0), Instant::now());
        (rows, verdicts) = (0, 0);
        for step in 0..500 {
            let ids: Vec<i64> =
                requests.iter().map(|request| ((step + request * 37) as usize % size) as i64).collect();
            let columns = Columns {
                requests: &requests,
                output_ids: &ids,
                output_ends: &(1..=REQUESTS as u32).collect::<Vec<_>>(),
                finished: &[FinishKind::Running; REQUESTS as usize],
                // As the host would give it if each row had left at once.
                waiting: &[0; REQUESTS as usize],
                ..Columns::default()
            };
            verdicts += plugin.process(&columns).unwrap().len();
            rows += requests.len();
        }
        figures.push(match counts_fuel {
            true => plugin.fuel_used().unwrap_or(0).saturating_sub(before) / rows as u64,
            false => start.elapsed().as_nanos() as u64 / rows as u64,
        });
    }
    println!(
        "{name}: {} fuel a row, {} ns a row, verdicts for {} % of the rows",
        figures[0],
        figures[1],
        100 * verdicts / rows
    );
}

#[test]
#[ignore = "a measurement: run it alone"]
fn cost_of_match_text() {
    cost("floor", "floor", TEXT, "{}");
    cost(
        "6 words",
        "match-text",
        TEXT,
        r#"{"words": ["bomb", "poison", "cocaine", "grenade", "murder", "kidnap"]}"#,
    );
    cost("card, iban, phone, ip", "match-text", TEXT, r#"{"presets": ["card", "iban", "phone", "ip"]}"#);
    cost("all presets", "match-text", TEXT, ALL);
    cost("all presets, private text", "match-text", PRIVATE, ALL);
}
