//! The connection to NATS, and the JetStream stream that holds the copy.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::{
    Config, Info, LastRawMessageErrorKind, PersistenceMode, RetentionPolicy, StorageType, Stream,
};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tokio::sync::Notify;

use crate::replicate::range::{Range, SUBJECTS};

/// Name of the JetStream stream.
pub(crate) const STREAM: &str = "afterbay";
/// Time limit for a connection, for an answer of the server, and for an acknowledgement.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Replicas of a new stream in a cluster.
const REPLICAS: usize = 3;

/// Credentials for NATS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// Text of a credentials file.
    file: Option<String>,
    user: Option<(String, String)>,
    token: Option<String>,
}

impl Credentials {
    /// Reads the credentials file, or the environment variables of the `nats` command.
    ///
    /// # Errors
    /// The file cannot be read. The error names it.
    pub fn load(file: Option<&Path>) -> Result<Credentials, String> {
        let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(path) = file.map(Path::to_owned).or(var("NATS_CREDS").map(PathBuf::from)) {
            let text =
                std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            return Ok(Credentials { file: Some(text), ..Credentials::default() });
        }
        let user = var("NATS_USER").map(|user| (user, var("NATS_PASSWORD").unwrap_or_default()));
        Ok(Credentials { file: None, user, token: var("NATS_TOKEN") })
    }

    /// The options of a connection with these credentials.
    ///
    /// # Errors
    /// The text of the file holds no credentials.
    pub fn options(&self) -> Result<ConnectOptions, String> {
        let options = ConnectOptions::new();
        match self {
            Credentials { file: Some(text), .. } => {
                options.credentials(text).map_err(|error| format!("the credentials are not valid: {error}"))
            }
            Credentials { user: Some((user, password)), .. } => {
                Ok(options.user_and_password(user.clone(), password.clone()))
            }
            Credentials { token: Some(token), .. } => Ok(options.token(token.clone())),
            _ => Ok(options),
        }
    }
}

/// A connection. It is not repaired: whoever lost it makes another one, and asks again what the server holds.
pub(crate) struct Nats {
    pub client: Client,
    pub context: Context,
    /// Notified when the connection is lost.
    pub lost: Arc<Notify>,
    /// The last error of the server that no request has as its answer, like a missing permission.
    error: Arc<Mutex<Option<String>>>,
}

impl Nats {
    /// Connects to one of the servers.
    ///
    /// # Errors
    /// No server can be reached or accepts the credentials, as a sentence.
    pub async fn connect(servers: &[String], credentials: &Credentials) -> Result<Nats, String> {
        // An error means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let servers: Vec<ServerAddr> =
            servers.iter().map(|server| server.parse()).collect::<Result<_, _>>().map_err(|error| {
                let error: std::io::Error = error;
                error.to_string()
            })?;
        let lost = Arc::new(Notify::new());
        let error = Arc::new(Mutex::new(None));
        let (notify, said) = (lost.clone(), error.clone());
        let options =
            credentials.options()?.name("afterbay").connection_timeout(ANSWER_MAX).max_reconnects(1);
        let options = options.event_callback(move |event| {
            match event {
                Event::Disconnected | Event::Closed => notify.notify_one(),
                Event::ServerError(error) => {
                    *said.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                }
                _ => {}
            }
            async {}
        });
        let connect = tokio::time::timeout(2 * ANSWER_MAX, options.connect(servers)).await;
        let client = match connect {
            Ok(connected) => connected.map_err(|error| error.to_string())?,
            Err(_) => return Err(format!("no connection in {:?}", 2 * ANSWER_MAX)),
        };
        let context = ContextBuilder::new().timeout(ANSWER_MAX).build(client.clone());
        Ok(Nats { client, context, lost, error })
    }

    /// The sentence with the last error that the server reported. A request without a permission has no answer: it times out.
    pub fn explain(&self, why: impl Display) -> String {
        match &*self.error.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => format!("{why}; {error}"),
            None => why.to_string(),
        }
    }

    /// The stream, made if it is missing: file storage, and 3 replicas in a cluster.
    ///
    /// # Errors
    /// The server refuses, as a sentence. A cluster that is just forming has no room for 3 replicas yet: fewer would lose the copy
    /// later.
    pub async fn find_or_make_stream(&self) -> Result<Stream, String> {
        let is_in_cluster = self.client.server_info().cluster.is_some();
        let config = Config {
            name: STREAM.to_owned(),
            description: Some("the journals of Afterbay".to_owned()),
            subjects: vec![SUBJECTS.to_owned()],
            storage: StorageType::File,
            num_replicas: if is_in_cluster { REPLICAS } else { 1 },
            ..Config::default()
        };
        let made = self.context.get_or_create_stream(config).await;
        made.map_err(|error| self.explain(format_args!("stream {STREAM:?}: {error}")))
    }

    /// The stream of the copy, which must exist.
    ///
    /// # Errors
    /// The server has no such stream, or refuses, as a sentence.
    pub async fn stream(&self) -> Result<Stream, String> {
        let stream = self.context.get_stream(STREAM).await;
        stream.map_err(|error| self.explain(format_args!("stream {STREAM:?}: {error}")))
    }
}

/// The last message of a subject. `None` if there is none, or if Afterbay did not write it.
///
/// # Errors
/// The server does not answer, as a sentence.
pub(crate) async fn last_range(stream: &Stream, subject: &str) -> Result<Option<Range>, String> {
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Ok(Range::from_message(&message.headers, message.payload)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(format!("subject {subject:?}: {error}")),
    }
}

/// The ways in which a stream keeps less than a copy of the journal needs, as ends of a sentence.
pub(crate) fn weaknesses(info: &Info) -> Vec<String> {
    let Config { num_replicas, storage, retention, persist_mode, subjects, .. } = &info.config;
    let mut found = Vec::new();
    if *num_replicas < 2 {
        found.push("keeps 1 replica: the loss of one server loses the copy".to_owned());
    }
    if *storage == StorageType::Memory {
        found.push("keeps messages in memory: a restart of its servers loses the copy".to_owned());
    }
    if *retention != RetentionPolicy::Limits {
        found.push(format!("removes messages that were read (retention {retention:?}), must be limits"));
    }
    if *persist_mode == Some(PersistenceMode::Async) {
        found.push("acknowledges messages before they are stored (persist_mode async)".to_owned());
    }
    if !subjects.iter().any(|subject| [SUBJECTS, ">"].contains(&subject.as_str())) {
        found.push(format!("has the subjects {subjects:?}, must have {SUBJECTS:?}"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credentials_file_that_cannot_be_read_is_named() {
        let error = Credentials::load(Some(Path::new("/nonexistent/nats.creds"))).unwrap_err();
        assert!(error.contains("/nonexistent/nats.creds"), "{error}");
        let wrong = Credentials { file: Some("no credentials".into()), ..Credentials::default() };
        assert!(wrong.options().is_err_and(|error| error.contains("not valid")));
    }
}
