//! A machine on which Afterbay never ran: what a user has who follows the first lines of the README.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use afterbay_tests::afterbay::{afterbay, ended};
use afterbay_tests::{Stage, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// `afterbay` of a user with an empty home, and with these variables besides.
fn of_fresh_user(stage: &Stage, args: &[&str], variables: &[(&str, String)]) -> Command {
    let mut command = afterbay(args);
    command.env("HOME", stage.path("home"));
    command.env_remove("XDG_STATE_HOME").env_remove("XDG_RUNTIME_DIR");
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}

#[test]
fn the_reference_configuration_is_good_and_runs_in_a_fresh_home() {
    for (variables, sockets, state) in [
        (&[][..], "home/.local/state/afterbay/run", "home/.local/state/afterbay"),
        (&["XDG_RUNTIME_DIR", "XDG_STATE_HOME"], "XDG_RUNTIME_DIR/afterbay", "XDG_STATE_HOME/afterbay"),
    ] {
        let stage = Stage::new();
        std::fs::create_dir(stage.path("home")).unwrap();
        // A session makes this one, and nobody the other.
        std::fs::create_dir(stage.path("XDG_RUNTIME_DIR")).unwrap();
        let variables: Vec<_> = variables.iter().map(|name| (*name, stage.text(name))).collect();
        let run = |args: &[&str]| of_fresh_user(&stage, args, &variables);
        let reference = ended(&mut run(&["check", "--reference"])).good();
        // Another Afterbay of this machine may have the address of the reference.
        let file = stage.replace("afterbay.toml", reference + "[admin]\nlisten = \"none\"\n");
        let checked = ended(&mut run(&["check", "--config", &file])).good();
        assert!(checked.contains(&stage.text(sockets)), "{checked}");
        assert!(!stage.path(state).exists(), "a check makes no directory");

        let mut child = run(&["run", "--config", &file]).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the stream listens", || stage.path(sockets).join("decode-0").exists().then_some(()));
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(stage.path(state).join("journal/decode-0").is_dir());
        for dir in [stage.path(sockets), stage.path(state).join("journal")] {
            assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{dir:?}");
        }
        // The journal of the reference is the one that is looked at where none is named.
        ended(&mut run(&["journal", "verify"])).good();
    }
}

#[test]
fn a_runtime_directory_that_is_not_the_user_s_is_passed_over() {
    let stage = Stage::new();
    let variables = [("XDG_RUNTIME_DIR", stage.text("of-somebody-else"))];
    let reference = ended(&mut of_fresh_user(&stage, &["check", "--reference"], &variables)).good();
    assert!(reference.contains(&stage.ipc("home/.local/state/afterbay/run/decode-0")), "{reference}");
}
