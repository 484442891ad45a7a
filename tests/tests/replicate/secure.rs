//! A server that asks for TLS, a credentials file and permissions.

use afterbay_tests::commands::{afterbay_command, journal, run_command};
use afterbay_tests::nats::NatsServer;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, SynthRequest, batch, repository};
use afterbay_wire::synth::SynthWire::Msgpack;
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use nkeys::KeyPair;
use serde_json::{Value, json};

/// The key and the certificate of 127.0.0.1, valid until 2126: `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes
/// -days 36500 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE`
const CERTIFICATE: &str = include_str!("127.0.0.1.pem");

#[test]
fn over_tls_a_credentials_file_with_the_permissions_of_the_manual_makes_fills_and_reads_the_copy() {
    let sandbox = Sandbox::new();
    let write = |name: &str, text: &str| {
        std::fs::write(sandbox.path(name), text).unwrap();
        sandbox.text(name)
    };
    let certificate = write("server.pem", CERTIFICATE);
    let accounts = Accounts::new();
    let creds = write("afterbay.creds", &accounts.user(&permissions()));
    let stranger = write("stranger.creds", &Accounts::new().user(&permissions()));
    let powerless = write("powerless.creds", &accounts.user(&json!({ "pub": { "deny": [">"] } })));
    let server = write("nats.conf", &accounts.server(&certificate));
    let server = NatsServer::start_with(&["-c", &server]);
    let url = server.url().replace("nats://", "tls://");

    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().replicate(&url).credentials(&creds);
    let afterbay = Afterbay::run_in(&sandbox, &config, &[("SSL_CERT_FILE", &certificate)]);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("r-1").last(&[1, 2])]));
    reader.frame();
    afterbay.until_metrics("NATS acknowledges", |metrics| metrics.process("replicate_bytes_total") > 200);
    assert_eq!(afterbay.stop(), 0);

    let ls = |variables: &[(&str, &str)]| {
        let mut command = afterbay_command(&["journal", "ls", "--json", "--from", &url]);
        run_command(command.envs(variables.iter().copied()))
    };
    let trusted = ("SSL_CERT_FILE", &*certificate);
    let instance = std::fs::read_to_string(sandbox.path("journal/INSTANCE")).unwrap();
    let copied = ls(&[trusted, ("NATS_CREDS", &creds)]).success();
    let copied = copied.replace(&format!("{}.", instance.trim()), "");
    assert_eq!(copied, journal(&sandbox, &["ls", "--json"]).success());

    for (variables, why) in [
        (&[("NATS_CREDS", &*creds)][..], "certificate"),
        (&[trusted, ("NATS_CREDS", &stranger)], "authorization violation"),
        (
            &[trusted, ("NATS_CREDS", &powerless)],
            "permissions violation for publish to \"$js.api.stream.info.afterbay\"",
        ),
    ] {
        let refused = ls(variables);
        assert!(refused.code == 1 && refused.stderr.to_lowercase().contains(why), "{why}: {refused:?}");
    }
}

/// The permissions that the manual's table gives the user.
fn permissions() -> Value {
    let manual = std::fs::read_to_string(repository().join("docs/src/operate/replicate.md")).unwrap();
    let subjects = |first: &str| -> Vec<String> {
        let rows = manual.lines().filter(|line| line.starts_with(&format!("| {first}")));
        rows.flat_map(|row| row.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
    };
    let (publish, subscribe) = (subjects("publish"), subjects("subscribe"));
    assert!(publish.len() > 3 && subscribe.len() == 1, "{publish:?} {subscribe:?}");
    json!({ "pub": { "allow": publish }, "sub": { "allow": subscribe } })
}

/// The keys of an operator, and of two accounts.
struct Accounts {
    operator: KeyPair,
    system: KeyPair,
    account: KeyPair,
}

impl Accounts {
    fn new() -> Accounts {
        Accounts {
            operator: KeyPair::new_operator(),
            system: KeyPair::new_account(),
            account: KeyPair::new_account(),
        }
    }

    /// The configuration of a server with these accounts.
    fn server(&self, certificate: &str) -> String {
        let (system, account) = (self.system.public_key(), self.account.public_key());
        // The system's account may have no storage.
        let account_with = |storage: i64| {
            json!({ "type": "account", "version": 2, "limits": {
                "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
                "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
            } })
        };
        format!(
            "tls {{ cert_file: {certificate:?}, key_file: {certificate:?} }}\noperator: {}\nsystem_account: {system}\n\
             resolver: MEMORY\nresolver_preload {{ {system}: {}, {account}: {} }}\n",
            jwt(&self.operator, &self.operator, json!({ "type": "operator", "version": 2 })),
            jwt(&self.operator, &self.system, account_with(0)),
            jwt(&self.operator, &self.account, account_with(-1)),
        )
    }

    /// The credentials file of a new user.
    fn user(&self, permissions: &Value) -> String {
        let user = KeyPair::new_user();
        let mut nats = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
        nats.as_object_mut().unwrap().extend(permissions.as_object().unwrap().clone());
        format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            jwt(&self.account, &user, nats),
            user.seed().unwrap(),
        )
    }
}

/// A claim as NATS reads it (<https://docs.nats.io>, "JWTs").
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: Value) -> String {
    let (issued_by, sub) = (issuer.public_key(), subject.public_key());
    let claims =
        json!({ "jti": sub, "iat": 1_790_000_000, "iss": issued_by, "sub": sub, "name": sub, "nats": nats });
    let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(json!({ "typ": "JWT", "alg": "ed25519-nkey" })), encode(claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}
