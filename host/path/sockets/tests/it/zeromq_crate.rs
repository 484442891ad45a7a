//! The other end is the `zeromq` crate, which the simulator and the signals use.

use crate::support::{Loop, both, free_port, ipc, outgoing, payload};
use afterbay_sockets::{PullOptions, PushOptions};
use zeromq::{Socket, SocketRecv, SocketSend};

const SIZES: [usize; 7] = [1, 255, 256, 8192, 65_536, 100_000, 4 << 20];

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn its_push_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in both(&dir, "in") {
        let mut this = Loop::bind(&endpoint, PullOptions::default());
        let endpoint = this.endpoint().to_string();
        let (received, until_received) = tokio::sync::oneshot::channel();
        let sending = std::thread::spawn(move || {
            runtime().block_on(async {
                let mut push = zeromq::PushSocket::new();
                push.connect(&endpoint).await.unwrap();
                for i in 0..70 {
                    push.send(payload(1, i as u64, SIZES[i % 7]).into()).await.unwrap();
                }
                // The crate has no linger: bytes that it has not written are lost with it.
                let _ = until_received.await;
            });
        });
        let got = this.described(70);
        received.send(()).unwrap();
        sending.join().unwrap();
        for (i, got) in got.iter().enumerate() {
            assert_eq!((got.1, got.2), (i as u64, SIZES[i % 7]));
        }
    }
}

#[test]
fn its_pull_understands_us() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in [ipc(&dir, "out"), free_port()] {
        let mut this = Loop::connect(&endpoint, PushOptions::default());
        let endpoint = endpoint.to_string();
        let receiving = std::thread::spawn(move || {
            runtime().block_on(async {
                let mut pull = zeromq::PullSocket::new();
                pull.bind(&endpoint).await.unwrap();
                let mut got = Vec::new();
                while got.len() < 70 {
                    let message = pull.recv().await.unwrap();
                    assert_eq!(message.len(), 1);
                    got.push(crate::support::describe(message.get(0).unwrap()));
                }
                got
            })
        });
        for i in 0..70 {
            this.send(outgoing(i as u64 + 1, SIZES[i % 7]));
        }
        this.until("taken", |this| this.push().is_drained());
        for (i, got) in receiving.join().unwrap().iter().enumerate() {
            assert_eq!((got.1, got.2), (i as u64 + 1, SIZES[i % 7]));
        }
    }
}
