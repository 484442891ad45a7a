//! Processes, as `/proc` shows them.

use rustix::process::{Pid, getpid};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The longest chain of parents that is followed.
const ANCESTORS_MAX: usize = 64;

/// Whether the process lives and is a child of this one, or a child of such a process.
pub(crate) fn is_descendant(pid: Pid) -> bool {
    let mut next = Some(pid);
    for _ in 0..ANCESTORS_MAX {
        next = next.and_then(parent);
        if next == Some(getpid()) {
            return true;
        }
    }
    false
}

fn parent(pid: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(parent.trim().parse().ok()?)
}

/// The file of the program that the process runs. None if the file was removed.
pub(crate) fn program(pid: Pid) -> Option<PathBuf> {
    let program = std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_pid())).ok()?;
    (!program.as_os_str().as_bytes().ends_with(b" (deleted)")).then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn only_a_living_child_or_grandchild_is_a_descendant() {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", "sleep 60 & echo $!; read end; kill $!"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let grandchild = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let child = Pid::from_raw(i32::try_from(shell.id()).unwrap()).unwrap();
        assert!(is_descendant(child) && is_descendant(grandchild));
        assert!(program(child).unwrap().is_absolute());
        assert!(!is_descendant(getpid()));
        assert!(!is_descendant(Pid::INIT));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(!is_descendant(child));
    }
}
