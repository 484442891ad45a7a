//! Docker's credentials for a registry, and errors that do not show them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use docker_credential::{CredentialRetrievalError, DockerCredential};
use oci_client::secrets::RegistryAuth;
use serde_json::Value;

use crate::oci::error::TransferError;

/// Characters of a registry's own words in an error.
const WORDS_MAX: usize = 1024;

/// The credentials for a registry.
pub(crate) struct Login {
    /// The registry's host and port.
    pub(crate) registry: String,
    pub(crate) auth: RegistryAuth,
    /// The reason why `auth` is anonymous.
    missing: Option<String>,
    /// The password and the tokens, which no message shows.
    secrets: Vec<String>,
}

impl Login {
    /// Asks Docker's configuration for credentials. A credential helper is a program and may be slow.
    pub(crate) async fn find(registry: &str) -> Login {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let of = registry.to_owned();
        // A thread outside the runtime: the end of the runtime would wait for a helper that hangs.
        let asking = std::thread::Builder::new().name("oci-credential".to_owned()).spawn(move || {
            let found = docker_credential::get_credential(&of);
            // The send fails if the caller timed out.
            let _ = reply.send(found.map_err(|error: CredentialRetrievalError| error.to_string()));
        });
        let found = match asking {
            Ok(_) => answer.await.unwrap_or_else(|_| Err("the credential helper was not asked".to_owned())),
            Err(error) => Err(error.to_string()),
        };
        let mut login = Login {
            registry: registry.to_owned(),
            auth: RegistryAuth::Anonymous,
            missing: None,
            secrets: Vec::new(),
        };
        match found {
            Ok(DockerCredential::UsernamePassword(user, password)) => {
                login.hide(&STANDARD.encode(format!("{user}:{password}")));
                login.hide(&password);
                login.auth = RegistryAuth::Basic(user, password);
            }
            Ok(DockerCredential::IdentityToken(token)) => {
                login.hide(&token);
                login.auth = RegistryAuth::Bearer(token);
            }
            Err(why) => login.missing = Some(why),
        }
        login
    }

    /// Shows this secret in no message.
    pub(crate) fn hide(&mut self, secret: &str) {
        if !secret.is_empty() {
            self.secrets.push(secret.to_owned());
        }
    }

    /// The error with the registry's words for a refusal. `body` is the body of the answer.
    pub(crate) fn refused(&self, status: reqwest::StatusCode, body: &str) -> TransferError {
        let mut why = format!("{status}: {}", words(body));
        if let (Some(missing), true) = (&self.missing, status.is_client_error()) {
            why = format!("{why}; asked without Docker's credentials: {missing}");
        }
        self.error(why)
    }

    /// The error for a failed request.
    pub(crate) fn failed(&self, mut error: reqwest::Error) -> TransferError {
        // The query of a storage's URL may be a signature.
        if let Some(url) = error.url_mut() {
            url.set_query(None);
        }
        self.error(chain(&error))
    }

    /// An error with this reason.
    pub(crate) fn error(&self, mut why: String) -> TransferError {
        for secret in &self.secrets {
            why = why.replace(secret.as_str(), "***");
        }
        // Puts the words of a registry or credential helper on one line.
        let why: String =
            why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS_MAX).collect();
        let why = afterbay_http::redacted(&why);
        TransferError::Registry { registry: self.registry.clone(), why }
    }
}

/// The messages of an OCI error body, or the body's text.
fn words(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let errors = parsed["errors"].as_array().into_iter().flatten();
    let messages: Vec<&str> =
        errors.filter_map(|error| error["message"].as_str().or(error["code"].as_str())).collect();
    if messages.is_empty() { body.to_owned() } else { messages.join(", ") }
}

/// The messages of an error and of its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        why = format!("{why}: {cause}");
        source = cause.source();
    }
    why
}
