//! libzmq readers that are killed and started again, with and without a credit page.

use crate::support::python::PythonPeer;
use crate::support::{Loop, free_port, ipc, outgoing, settled, with_credit};
use afterbay_sockets::PushOptions;
use afterbay_sockets::credit::CreditState;

#[test]
fn ten_libzmq_readers_with_the_connectors_page_get_every_frame_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    let page = dir.path().join("tokenizer");
    let mut this = Loop::connect(&endpoint, with_credit(&dir, |_| ()));
    let (mut finished, mut next) = (Vec::new(), 1);
    for round in 0..10 {
        let mut peer = PythonPeer::start();
        peer.ask(&format!("credit {}", page.display()));
        peer.ask(&format!("pull a bind {endpoint}"));
        for _ in 0..50 {
            this.send(outgoing(next, 2000));
            next += 1;
        }
        // The reader finishes this many frames, and is killed with the rest unread, in its queue, or cut.
        let count = 5 * round + 1;
        peer.send_command(&format!("recv a {count} 30000"));
        let before = this.push().taken();
        this.until("finished", |this| this.push().taken() >= before + count);
        finished.extend(peer.received().iter().map(|got| got.1));
        peer.kill();
    }
    let mut peer = PythonPeer::start();
    peer.ask(&format!("credit {}", page.display()));
    peer.ask(&format!("pull a bind {endpoint}"));
    let rest = next - 1 - finished.len() as u64;
    peer.send_command(&format!("recv a {rest} 30000"));
    this.until("drained", |this| this.push().is_drained());
    finished.extend(peer.received().iter().map(|got| got.1));
    assert_eq!(finished, (1..next).collect::<Vec<_>>());
    assert!(settled(&this).iter().all(|(_, unconfirmed)| unconfirmed.is_none()), "{:?}", settled(&this));
    let CreditState::Usable { generation: 11, .. } = this.push().credit() else {
        panic!("{:?}", this.push().credit())
    };
}

#[test]
fn ten_libzmq_readers_without_a_page_get_in_order_the_frames_that_the_last_one_left() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in [ipc(&dir, "reader"), free_port()] {
        let mut this = Loop::connect(&endpoint, PushOptions::default());
        let (mut got, mut next) = (Vec::new(), 1);
        for _ in 0..10 {
            let mut peer = PythonPeer::start();
            peer.ask(&format!("pull a bind {endpoint}"));
            for _ in 0..20 {
                this.send(outgoing(next, 30_000));
                next += 1;
            }
            this.until("drained", |this| this.push().is_drained());
            peer.send_command(&format!("recv a {} 30000", next - 1 - got.len() as u64));
            got.extend(peer.received().iter().map(|got| got.1));
            peer.kill();
            // Sent while there is no reader: for the next one.
            this.until("lost", |this| !this.push().is_connected());
            this.send(outgoing(next, 100));
            next += 1;
        }
        let mut peer = PythonPeer::start();
        peer.ask(&format!("pull a bind {endpoint}"));
        this.until("drained", |this| this.push().is_drained());
        peer.send_command(&format!("recv a {} 30000", next - 1 - got.len() as u64));
        got.extend(peer.received().iter().map(|got| got.1));
        assert_eq!(got, (1..next).collect::<Vec<_>>(), "{endpoint}");
    }
}
