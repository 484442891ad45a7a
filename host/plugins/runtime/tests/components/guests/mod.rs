//! Each guest of `tests/guests/examples` has a test file of its name here.

mod amplifies;
mod asks;
mod bad_name;
mod connects;
mod crashes;
mod effects;
mod forbidden;
mod hog;
mod holds;
mod judges;
mod logs;
mod loops;
mod malformed;
mod meters;
mod nothing;
mod other_world;
mod panics;
mod panics_in_describe;
mod remembers;
mod reports;
mod routes;
mod says;
mod times;
mod tires;
mod tokens;

use afterbay_runtime::{Columns, Fault, FaultCause, Opened, Plugin};

use crate::{granted, guest, host, limits, load, repository, start};

/// A batch of these requests without other columns.
fn batch_of(requests: &[u64]) -> Columns<'_> {
    Columns { requests, ..Columns::default() }
}

fn opened(request: u64) -> Opened<'static> {
    Opened {
        request,
        rid: "rid",
        front_end: "",
        sink: "",
        arrived_ms: 0,
        prompt_tokens: 1,
        received_tokens: 0,
        resumed: false,
    }
}

/// Makes the plugin misbehave in the way that its settings say.
fn provoke(plugin: &mut Plugin, call: &str) -> Fault {
    let ended = match call {
        "open" => plugin.open(&[opened(1)]),
        "process" => plugin.process(&batch_of(&[1])).map(|_| ()),
        "close" => plugin.close(&[1]),
        other => panic!("no call of this name: {other}"),
    };
    ended.unwrap_err()
}

fn trap_message(fault: &Fault) -> &str {
    match &fault.cause {
        FaultCause::Trap { message } => message,
        other => panic!("no trap: {other}"),
    }
}

#[test]
fn every_guest_has_a_test_of_its_name() {
    let here = repository().join("host/plugins/runtime/tests/components/guests");
    let list = std::fs::read_to_string(here.join("mod.rs")).unwrap();
    let guests: Vec<String> = std::fs::read_dir(repository().join("tests/guests/examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().replace('-', "_"))
        .collect();
    assert!(guests.len() > 10, "{guests:?}");
    for guest in guests {
        assert!(list.contains(&format!("\nmod {guest};\n")), "guest {guest} is in no test");
        let tests = std::fs::read_to_string(here.join(format!("{guest}.rs"))).unwrap();
        assert!(tests.contains("#[test]"), "guest {guest} is in no test");
    }
}
