//! Checks `[stream.abort]`.

use crate::check::Check;
use crate::checked::{Abort, ApiKeyFrom};
use crate::location::Located;
use crate::{scrape, written};

impl Check<'_> {
    /// Returns `None` where the table has neither a push nor an http, or both. The problems are reported.
    pub(crate) fn abort(&self, written: &written::Abort) -> Option<Abort> {
        let written::Abort { location, push, http, api_key_env, api_key_file } = written;
        if let Some(key) = api_key_env.as_ref().or(api_key_file.as_ref())
            && http.is_none()
        {
            self.source.report(&key.location, "needs http, which is not given");
        }
        if let (Some(_), Some(second)) = (api_key_env, api_key_file) {
            self.source.report(&second.location, "api_key_env is given too, must be one of them");
        }
        match (push, http) {
            (Some(_), Some(second)) => {
                self.source.report(&second.location, "push is given too, must be one of them");
                None
            }
            (None, None) => {
                self.source.report(location, "must have push or http");
                None
            }
            // Bound, as `listen` is.
            (Some(_), None) => self.listen(push).map(Abort::Push),
            (None, Some(Located { value: url, location })) => {
                let query = url.contains('?').then_some("has a query");
                if let Some(why) = scrape::check(url).err().or(query) {
                    let like = "must be like \"http://127.0.0.1:30000\"";
                    self.source.report(location, format!("{url:?} {why}, {like}"));
                }
                Some(Abort::Http { url: url.clone(), api_key: self.api_key(api_key_env, api_key_file) })
            }
        }
    }

    /// The source of the API key. The key must exist; it is not read here.
    fn api_key(&self, env: &Option<Located<String>>, file: &Option<Located<String>>) -> Option<ApiKeyFrom> {
        if let Some(Located { value, location }) = env {
            if (self.source.env.var)(value).is_none() {
                self.source.report(location, format!("environment variable {value} is not set"));
            }
            return Some(ApiKeyFrom::Env(value.clone()));
        }
        self.readable(file).map(ApiKeyFrom::File)
    }
}
