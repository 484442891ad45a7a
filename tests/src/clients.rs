//! Clients that read their requests at the address of `[clients]`.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::admin::{self, Address};
use crate::commands::run_afterbay;
use crate::{Afterbay, Config, Sandbox, wait_for};

/// The secret of [`served`].
pub const SECRET: &str = "a secret of at least thirty-two bytes";

/// Adds an address for clients, with a free port, to a configuration of this sandbox.
pub fn served(sandbox: &Sandbox, config: Config) -> Config {
    std::fs::write(sandbox.path("clients.key"), SECRET).unwrap();
    config.clients("127.0.0.1:0", &sandbox.text("clients.key"))
}

/// The address that was bound after so many others.
#[track_caller]
pub fn address(afterbay: &Afterbay, before: usize) -> Address {
    let listening = wait_for("the address for clients listens", || {
        afterbay.events("ClientsListening").get(before).cloned()
    });
    Address::Tcp(listening["address"].as_str().unwrap().parse().unwrap())
}

/// A token for this request.
#[track_caller]
pub fn token(sandbox: &Sandbox, id: &str) -> String {
    let config = sandbox.text("afterbay.toml");
    run_afterbay(&["clients", "token", id, "--config", &config]).success().trim().to_owned()
}

/// The part of a request that has left, as JSON.
#[track_caller]
pub fn read(sandbox: &Sandbox, address: &Address, id: &str, query: &str) -> Value {
    let path = format!("GET /v1/streams/{}?{query}", utf8_percent_encode(id, NON_ALPHANUMERIC));
    let bearer = format!("Authorization: Bearer {}", token(sandbox, id));
    let answer = admin::ask(address, &path, &[&bearer], "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}
