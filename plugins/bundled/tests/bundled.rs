//! Runs the bundled plugins in the real runtime.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterbay_runtime::{
    Action, Columns, EncodeError, Grants, Host, HostOptions, IdShape, Limits, Opened, Plugin, Replacement,
    Terms, Tokens, Verdict,
};

/// The default limits, but for a long deadline: a test machine may be slow and busy.
fn limits() -> Limits {
    Limits { deadline: Duration::from_secs(10), ..Limits::default() }
}

/// A host that caches compiled components for the black-box tests (`tests/src/afterbay.rs`).
fn host() -> Host {
    let cache_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache/afterbay/compiled");
    Host::new(HostOptions { cache_dir: Some(cache_dir), ..HostOptions::default() }).unwrap()
}

fn start(host: &Host, name: &str) -> Plugin {
    let bytes = afterbay_bundled::find(name).unwrap().component;
    host.load(name, bytes, limits()).unwrap().instantiate("{}").unwrap()
}

fn opened(request: &u64) -> Opened<'static> {
    Opened {
        request: *request,
        rid: "r",
        front_end: "",
        sink: "",
        arrived_ms: 0,
        prompt_tokens: 0,
        received_tokens: 0,
        resumed: false,
    }
}

/// A model without tokens.
struct NoTokens;

impl Tokens for NoTokens {
    fn size(&self) -> u32 {
        0
    }

    fn bytes(&self, _: i64) -> &[u8] {
        &[]
    }

    fn special(&self) -> &[i64] {
        &[]
    }

    fn end_of_text(&self) -> &[i64] {
        &[]
    }

    fn encode(&self, _: &str) -> Result<Vec<i64>, EncodeError> {
        Ok(Vec::new())
    }
}

#[test]
fn the_c_header_names_the_version_of_the_contract() {
    let (_, header) = afterbay_bundled::c_bindings().iter().find(|(name, _)| *name == "transform.h").unwrap();
    let version = afterbay_runtime::CONTRACT;
    assert!(
        header.contains(&format!("#define AFTERBAY_PLUGIN_VERSION \"{version}\"\n")),
        "{}",
        &header[..400]
    );
}

#[test]
fn every_bundled_plugin_loads_under_its_name() {
    let host = host();
    for &afterbay_bundled::Bundled { name, component, .. } in afterbay_bundled::all() {
        let grants = Grants {
            metrics: Some(Arc::new(())),
            store: Some(Arc::new(())),
            health: true,
            call: true,
            signals: true,
            request: true,
            tokenizer: Some(Arc::new(NoTokens)),
            ..Grants::default()
        };
        let terms = Terms { limits: limits(), grants, ..Terms::default() };
        let component = host.load(name, component, terms).unwrap();
        assert_eq!(component.description().name, name);
        assert!(component.description().settings_schema.is_some(), "{name} has no schema");
    }
}

#[test]
fn delta_to_cumulative_sends_all_ids_of_the_request_in_each_row() {
    let host = host();
    let mut plugin = start(&host, "delta-to-cumulative");
    assert_eq!(plugin.component().description().writes, IdShape::Cumulative);
    let requests: Vec<u64> = (0..64).collect();
    plugin.open(&requests.iter().map(opened).collect::<Vec<_>>()).unwrap();
    let id = |request: u64, step: i64| request as i64 * 1_000 + step;
    for step in 0..40 {
        let ids: Vec<i64> = requests.iter().map(|&request| id(request, step)).collect();
        let columns = Columns {
            requests: &requests,
            output_ids: &ids,
            output_ends: &(1..=64).collect::<Vec<_>>(),
            completion_tokens: &[step as u64 + 1; 64],
            ..Columns::default()
        };
        let so_far = |&request: &u64| Verdict {
            row: request as u32,
            action: Action::Replace(Replacement {
                ids: (0..=step).map(|step| id(request, step)).collect(),
                text: None,
            }),
        };
        let expected: Vec<Verdict> = if step == 0 { vec![] } else { requests.iter().map(so_far).collect() };
        assert_eq!(plugin.process(&columns).unwrap(), expected, "step {step}");
    }
    plugin.close(&requests).unwrap();
    assert!(!plugin.has_log(), "{:?}", plugin.drain_log());
}

/// Prints the figures of the README: `cargo test --release -p afterbay-bundled -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement: run it alone and in release"]
fn cost_of_delta_to_cumulative() {
    let host = host();
    let bytes = afterbay_bundled::find("delta-to-cumulative").unwrap().component;
    let limits = Limits { memory_bytes: 4 << 30, ..limits() };
    let component = host.load("cumulative", bytes, limits).unwrap();
    let requests: Vec<u64> = (0..1_024).collect();
    for tokens in [100_u32, 500, 2_000] {
        let mut plugin = component.instantiate("{}").unwrap();
        plugin.open(&requests.iter().map(opened).collect::<Vec<_>>()).unwrap();
        let mut last_call = Duration::ZERO;
        for step in 1..=tokens {
            let columns = Columns {
                requests: &requests,
                output_ids: &[7; 1_024],
                output_ends: &(1..=1_024).collect::<Vec<_>>(),
                completion_tokens: &[u64::from(step); 1_024],
                ..Columns::default()
            };
            let start = std::time::Instant::now();
            plugin.process(&columns).unwrap();
            last_call = start.elapsed();
        }
        println!(
            "1,024 requests, batch {tokens}: {last_call:?}, {} MiB of memory",
            plugin.memory_bytes() >> 20
        );
    }
}
