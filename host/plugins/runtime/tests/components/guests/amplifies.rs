//! An answer that is small in the guest's memory and huge for the host.

use super::*;

#[test]
fn an_answer_larger_than_the_plugins_memory_is_a_fault_and_is_not_copied() {
    let mut plugin = start("amplifies", "{}");
    let before = memory_peak_kib();
    let fault = plugin.process(&batch_of(&(0..1024).collect::<Vec<_>>())).unwrap_err();
    assert!(trap_message(&fault).contains("too much data"), "{fault}");
    let grown = memory_peak_kib() - before;
    assert!(grown < 1 << 20, "the answer is 4 GiB, its limit 64 MiB; the process grew by {grown} KiB");
}

fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
