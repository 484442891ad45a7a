//! Seeded verdicts.

use super::verdicts;
use afterbay_runtime::{Component, Host, HostOptions, Limits, Terms};
use mutate::{Random, run};
use std::path::Path;
use std::time::Duration;

#[path = "../../../../../tests/src/mutate.rs"]
mod mutate;

fn says() -> Component {
    let test = std::env::current_exe().unwrap();
    let tmp = test.ancestors().nth(3).unwrap().join("tmp");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/guests");
    let built = afterbay_plugin_build::build(&sources, &tmp.join("guests")).unwrap();
    let bytes = std::fs::read(built.join("examples/says.wasm")).unwrap();
    let cache_dir = Some(tmp.join("cache/afterbay/compiled"));
    let host = Host::new(HostOptions { cache_dir, ..HostOptions::default() }).unwrap();
    let limits =
        Limits { deadline: Duration::from_secs(10), hold: Duration::from_secs(600), ..Limits::default() };
    host.load("says", &bytes, Terms { limits, ..Terms::default() }).unwrap()
}

/// An input with this first byte, whose answers the contract allows. Few of the random ones are.
fn seed(mode: u8, random: &mut Random) -> Vec<u8> {
    let mut input = vec![mode];
    for _ in 0..16 {
        let mask = 1 | random.number() as u8;
        let ends = random.number() as u8 & random.number() as u8 & random.number() as u8;
        let rows = mask.count_ones() as u8;
        let mut letters = vec![1 + random.number() as u8 % rows.min(4)];
        for row in 0..letters[0] {
            letters.push(row);
            letters.push(random.number() as u8 % 12);
            letters.extend((0..4).map(|_| random.number() as u8 % 6));
        }
        input.extend([mask, ends]);
        let mut letters = letters.chunks(4);
        for _ in 0..rows {
            let ids = letters.next().unwrap_or_default();
            input.push(ids.len() as u8);
            input.extend(ids);
        }
        input.push(random.number() as u8 % 8);
    }
    input
}

#[test]
fn any_verdicts_keep_the_ledger_balanced_and_no_unjudged_row_passes_a_terminate_plugin() {
    let says = says();
    let mut random = Random(1);
    let modes = [0, 1, 2].into_iter().flat_map(|mode| [mode, mode | 0x40, mode | 0x80, mode | 0xc0]);
    let seeds: Vec<Vec<u8>> = modes.map(|mode| seed(mode, &mut random)).collect();
    run(&|bytes| verdicts(&says, bytes), &seeds, 30);
}
