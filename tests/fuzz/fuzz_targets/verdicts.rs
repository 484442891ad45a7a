//! Lets a plugin give any verdicts.
#![no_main]

use afterbay_runtime::{Component, Host, HostOptions, Limits};
use std::sync::LazyLock;
use std::time::Duration;

static SAYS: LazyLock<Component> = LazyLock::new(|| {
    let bytes = std::fs::read(afterbay_tests::components::guest("says")).expect("a component");
    // An instrumented host is slow.
    let limits =
        Limits { deadline: Duration::from_secs(10), hold: Duration::from_secs(600), ..Limits::default() };
    let host = Host::new(HostOptions::default()).expect("a host");
    host.load("says", &bytes, limits).expect("a plugin")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterbay_stream::fuzz::verdicts(&SAYS, bytes));
