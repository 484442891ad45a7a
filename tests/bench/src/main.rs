//! Every cost of design.md beside its baseline.
fn main() {}
