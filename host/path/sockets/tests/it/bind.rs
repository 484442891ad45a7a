//! Binding an endpoint, and giving its name back.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use crate::support::raw::Raw;
use crate::support::{Loop, ipc, path_of};
use afterbay_sockets::{BindError, Endpoint, Pull, PullOptions, TokenRange};

fn bind(endpoint: &Endpoint, listen_mode: u32) -> Result<Pull, BindError> {
    let poll = mio::Poll::new().unwrap();
    let tokens = TokenRange { first: 0, count: 10 };
    Pull::bind(poll.registry(), tokens, endpoint, PullOptions { listen_mode, ..PullOptions::default() }, None)
}

fn mode(endpoint: &Endpoint) -> u32 {
    std::fs::metadata(path_of(endpoint)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_free_name_is_taken_with_its_mode_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    for listen_mode in [0o600, 0o660, 0o777, 0o000] {
        let endpoint = ipc(&dir, "name");
        let pull = bind(&endpoint, listen_mode).unwrap();
        assert_eq!((pull.endpoint(), mode(&endpoint)), (&endpoint, listen_mode));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no other trace");
        drop(pull);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    assert_eq!(
        bind(&ipc(&dir, "name"), 0o1777).unwrap_err().to_string(),
        "listen_mode 1777 is not a mode, the limit is 777"
    );
}

#[test]
fn a_regular_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "tmpab12cd");
    std::fs::write(path_of(&endpoint), "").unwrap();
    let _pull = bind(&endpoint, 0o600).unwrap();
    assert!(std::fs::metadata(path_of(&endpoint)).unwrap().file_type().is_socket());
}

#[test]
fn a_stale_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "stale");
    drop(UnixListener::bind(path_of(&endpoint)).unwrap());
    assert!(path_of(&endpoint).exists());
    let _pull = bind(&endpoint, 0o600).unwrap();
    drop(std::os::unix::net::UnixStream::connect(path_of(&endpoint)).unwrap());
}

#[test]
fn the_name_of_a_live_listener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "alive");
    let alive = UnixListener::bind(path_of(&endpoint)).unwrap();
    assert!(matches!(bind(&endpoint, 0o600), Err(BindError::InUse { .. })));
    // A listener whose backlog is full is alive too.
    let fill = std::iter::repeat_with(|| {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        );
        let socket = socket.unwrap();
        rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path_of(&endpoint)).unwrap())
            .map(|()| socket)
    });
    let fill: Vec<_> = fill.map_while(Result::ok).take(10_000).collect();
    assert!(fill.len() < 10_000);
    assert!(matches!(bind(&endpoint, 0o600), Err(BindError::InUse { .. })));
    drop(fill);
    alive.accept().unwrap();
    let pull = bind(&ipc(&dir, "other"), 0o600).unwrap();
    let error = bind(pull.endpoint(), 0o600).unwrap_err().to_string();
    assert_eq!(error, format!("{} has a listener that is alive", pull.endpoint()));
    // A datagram socket of that name is alive too.
    let datagram = ipc(&dir, "datagram");
    let _datagram = std::os::unix::net::UnixDatagram::bind(path_of(&datagram)).unwrap();
    assert!(matches!(bind(&datagram, 0o600), Err(BindError::InUse { .. })));
}

#[test]
fn a_file_that_is_never_replaced_is_refused_with_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("directory")).unwrap();
    std::os::unix::fs::symlink("/etc/hosts", dir.path().join("symbolic link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for (endpoint, kind) in [
        (ipc(&dir, "directory"), "directory"),
        (ipc(&dir, "symbolic link"), "symbolic link"),
        (ipc(&dir, "fifo"), "fifo"),
        (Endpoint::ipc("/dev/null").unwrap(), "device"),
    ] {
        let error = bind(&endpoint, 0o600).unwrap_err().to_string();
        assert_eq!(error, format!("{endpoint} is a {kind}, only a socket or a regular file is replaced"));
        assert!(path_of(&endpoint).symlink_metadata().is_ok());
    }
    let error = bind(&ipc(&dir, "no/such/directory"), 0o600).unwrap_err().to_string();
    assert!(error.contains("bind: No such file or directory"), "{error}");
}

#[test]
fn a_name_that_another_process_has_taken_over_is_not_unlinked() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "taken");
    let pull = bind(&endpoint, 0o600).unwrap();
    // libzmq takes over a name like this.
    std::fs::remove_file(path_of(&endpoint)).unwrap();
    let _other = UnixListener::bind(path_of(&endpoint)).unwrap();
    let inode = std::fs::metadata(path_of(&endpoint)).unwrap().ino();
    drop(pull);
    assert_eq!(std::fs::metadata(path_of(&endpoint)).unwrap().ino(), inode);
}

#[test]
fn of_many_that_bind_at_once_one_has_the_name() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let endpoint = ipc(&dir, &format!("race{round}"));
        std::fs::write(path_of(&endpoint), "").unwrap();
        let bound: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| bind(&endpoint, 0o600))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners = bound.iter().filter(|bound| bound.is_ok()).count();
        assert_eq!(winners, 1, "round {round}: {bound:?}");
        assert!(bound.iter().all(|bound| matches!(bound, Ok(_) | Err(BindError::InUse { .. }))));
        drop(std::os::unix::net::UnixStream::connect(path_of(&endpoint)).unwrap());
    }
}

#[test]
fn a_foreign_lock_on_the_directory_does_not_prevent_binding() {
    let dir = tempfile::tempdir().unwrap();
    let stranger = std::fs::File::open(dir.path()).unwrap();
    stranger.lock().unwrap();
    // A bind that takes the lock of the directory waits for ever.
    bind(&ipc(&dir, "name"), 0o600).unwrap();
}

#[test]
fn a_tcp_port_of_0_becomes_a_real_one_and_a_port_in_use_is_refused() {
    let pull = bind(&"tcp://127.0.0.1:0".parse().unwrap(), 0o600).unwrap();
    let Endpoint::Tcp { port, .. } = pull.endpoint().clone() else { panic!() };
    assert_ne!(port, 0);
    let error = bind(pull.endpoint(), 0o600).unwrap_err().to_string();
    assert_eq!(error, format!("tcp://127.0.0.1:{port} has a listener that is alive"));
    drop(pull);
    bind(&Endpoint::Tcp { host: "127.0.0.1".to_owned(), port }, 0o600).unwrap();
    let error = bind(&"tcp://no.such.host.invalid:1".parse().unwrap(), 0o600).unwrap_err().to_string();
    assert!(error.starts_with("tcp://no.such.host.invalid:1 has no address: "), "{error}");
}

#[test]
fn a_wildcard_address_and_a_name_are_bound() {
    for host in ["*", "localhost"] {
        let mut this = Loop::bind(&format!("tcp://{host}:0").parse().unwrap(), PullOptions::default());
        let Endpoint::Tcp { port, .. } = this.endpoint() else { panic!() };
        let mut raw = Raw::push(&Endpoint::Tcp { host: "localhost".to_owned(), port });
        raw.send(b"hello");
        this.receive(1);
    }
}
