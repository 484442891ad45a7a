//! The afterbay binary.
fn main() {}
