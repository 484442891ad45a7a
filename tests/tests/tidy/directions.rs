//! Which crates of the host must not know each other, also by way of others. Cargo itself refuses rings.

use super::{crates, dependencies, none};
use std::collections::{BTreeMap, BTreeSet};

/// Crates that use no other crate of ours.
const ALONE: &[&str] = &["types", "text", "http", "supervision", "terminal"];

/// Each crate with those that it must not reach.
const MUST_NOT_KNOW: &[(&str, &[&str])] = &[
    ("config", &["events", "journal", "runtime", "stream"]),
    ("events", &["config", "journal", "runtime", "stream"]),
    ("wire", &["journal", "sockets", "text"]),
    ("sockets", &["journal", "wire"]),
    ("journal", &["sockets", "wire"]),
    ("runtime", &["journal", "wire"]),
    ("batch", &["chain", "runtime", "sockets"]),
    ("chain", &["sockets"]),
    ("stream", &["http", "plugin-loader", "plugin-services", "scheduler", "server"]),
    ("plugin-services", &["runtime", "stream", "wire"]),
    ("plugin-loader", &["server", "stream"]),
    ("scheduler", &["journal", "server", "stream"]),
    ("journal-view", &["server", "sockets", "stream"]),
    ("follow", &["server", "stream"]),
    // parquet, object_store, async-nats and opentelemetry are linked into `afterbay-follow` only.
    ("server", &["follow"]),
    ("journal-tools", &["follow", "server"]),
    ("sim", &["journal", "server", "stream"]),
    ("plugin-tools", &["server"]),
];

/// The crates that this crate uses, and those that they use.
fn reach<'a>(name: &str, uses: &'a BTreeMap<String, Vec<String>>, reached: &mut BTreeSet<&'a str>) {
    for used in uses.get(name).into_iter().flatten() {
        if reached.insert(used) {
            reach(used, uses, reached);
        }
    }
}

#[test]
fn no_crate_knows_what_it_must_not_know() {
    let short = |name: &str| name.strip_prefix("afterbay-").map(str::to_owned);
    let uses: BTreeMap<String, Vec<String>> = crates()
        .into_iter()
        .filter_map(|(name, manifest)| {
            let used = dependencies(&manifest, &["dependencies", "build-dependencies"]);
            Some((short(&name)?, used.iter().filter_map(|used| short(used)).collect()))
        })
        .collect();
    let mut wrong = Vec::new();
    let alone = ALONE.iter().map(|name| (*name, None));
    for (name, forbidden) in alone.chain(MUST_NOT_KNOW.iter().map(|(name, others)| (*name, Some(*others)))) {
        if !uses.contains_key(name) {
            wrong.push(format!("there is no crate {name}"));
        }
        let mut reached = BTreeSet::new();
        reach(name, &uses, &mut reached);
        let known = reached.into_iter().filter(|it| forbidden.is_none_or(|others| others.contains(it)));
        wrong.extend(known.map(|known| format!("{name} knows {known}")));
    }
    none("directions of dependencies", wrong);
}
