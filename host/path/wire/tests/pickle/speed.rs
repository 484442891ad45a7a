//! Measures the cost of reading and writing a batch, per row:
//! `cargo test --release -p afterbay-pickle -- --ignored --nocapture`

use std::hint::black_box;
use std::time::{Duration, Instant};

use afterbay_wire::pickle::{NodeId, Parser, Tree};

use crate::fixtures::frame;

const ROWS: u32 = 1024;

#[test]
#[ignore = "a measurement"]
fn nanoseconds_a_row() {
    let pickle = frame("tokid_n1024");
    let mut parser = Parser::new();
    let tree = parser.parse(pickle.clone()).unwrap();
    measure("parse", || drop(black_box(parser.parse(pickle.clone()).unwrap())));
    measure("ids of output_ids", || {
        black_box(read_ids(&tree, "output_ids"));
    });
    measure("write", || drop(black_box(tree.write().unwrap())));
}

fn read_ids(tree: &Tree, column: &str) -> usize {
    let fields = tree.object(tree.root()).unwrap().fields.unwrap();
    let rows: &[NodeId] = tree.items(tree.get(fields, column).unwrap()).unwrap();
    let mut ids = Vec::new();
    for row in rows {
        tree.ids(*row, &mut ids).unwrap();
    }
    ids.len()
}

/// The best of many runs, because machines are shared.
fn measure(what: &str, mut run: impl FnMut()) {
    let mut best = Duration::MAX;
    for _ in 0..2000 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
    }
    println!("{what:20} {:6.1} ns a row", best.as_nanos() as f64 / f64::from(ROWS));
}
