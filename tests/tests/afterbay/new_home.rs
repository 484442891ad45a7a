//! A machine on which Afterbay never ran, and a user who follows the first lines of the README.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use afterbay_tests::commands::{afterbay_command, run_command};
use afterbay_tests::{Sandbox, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// A command of a user with an empty home and with these environment variables.
fn of_fresh_user(sandbox: &Sandbox, args: &[&str], variables: &[(&str, String)]) -> Command {
    let mut command = afterbay_command(args);
    command.env("HOME", sandbox.path("home"));
    command.env_remove("XDG_STATE_HOME").env_remove("XDG_RUNTIME_DIR");
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}

#[test]
fn the_reference_configuration_runs_in_a_new_home_directory() {
    for (variables, sockets, state) in [
        (&[][..], "home/.local/state/afterbay/run", "home/.local/state/afterbay"),
        (&["XDG_RUNTIME_DIR", "XDG_STATE_HOME"], "XDG_RUNTIME_DIR/afterbay", "XDG_STATE_HOME/afterbay"),
    ] {
        let sandbox = Sandbox::new();
        std::fs::create_dir(sandbox.path("home")).unwrap();
        // A session creates this directory; nothing creates the other.
        std::fs::create_dir(sandbox.path("XDG_RUNTIME_DIR")).unwrap();
        let variables: Vec<_> = variables.iter().map(|name| (*name, sandbox.text(name))).collect();
        let run = |args: &[&str]| of_fresh_user(&sandbox, args, &variables);
        let reference = run_command(&mut run(&["check", "--reference"])).success();
        // Another Afterbay may use the reference's admin address.
        let file = sandbox.replace("afterbay.toml", reference + "[admin]\nlisten = \"none\"\n");
        let checked = run_command(&mut run(&["check", "--config", &file])).success();
        assert!(checked.contains(&sandbox.text(sockets)), "{checked}");
        assert!(!sandbox.path(state).exists(), "a check makes no directory");

        let mut child = run(&["run", "--config", &file]).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the stream listens", || sandbox.path(sockets).join("decode-0").exists().then_some(()));
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(sandbox.path(state).join("journal/decode-0").is_dir());
        for dir in [sandbox.path(sockets), sandbox.path(state).join("journal")] {
            assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{dir:?}");
        }
        // Without --from the commands use the journal of the reference.
        run_command(&mut run(&["journal", "verify"])).success();
    }
}

#[test]
fn a_runtime_directory_of_another_user_is_not_used() {
    let sandbox = Sandbox::new();
    let variables = [("XDG_RUNTIME_DIR", sandbox.text("of-somebody-else"))];
    let reference =
        run_command(&mut of_fresh_user(&sandbox, &["check", "--reference"], &variables)).success();
    assert!(reference.contains(&sandbox.ipc("home/.local/state/afterbay/run/decode-0")), "{reference}");
}
