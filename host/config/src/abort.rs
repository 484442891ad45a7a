//! `[stream.abort]`, from written to checked.

use crate::check::Check;
use crate::checked::{Abort, ApiKeyFrom};
use crate::place::Placed;
use crate::{scrape, written};

impl Check<'_> {
    /// `None` where something was told.
    pub(crate) fn abort(&self, written: &written::Abort) -> Option<Abort> {
        let written::Abort { place, push, http, api_key_env, api_key_file } = written;
        if let Some(key) = api_key_env.as_ref().or(api_key_file.as_ref())
            && http.is_none()
        {
            self.source.tell(&key.place, "an API key is for http, which is not given");
        }
        if let (Some(_), Some(second)) = (api_key_env, api_key_file) {
            self.source.tell(&second.place, "api_key_env is given too, must be one of them");
        }
        match (push, http) {
            (Some(_), Some(second)) => {
                self.source.tell(&second.place, "push is given too, must be one of them");
                None
            }
            (None, None) => {
                self.source.tell(place, "must have push or http");
                None
            }
            // Bound, as `listen` is.
            (Some(_), None) => self.listen(push).map(Abort::Push),
            (None, Some(Placed { value: url, place })) => {
                let query = url.contains('?').then_some("has a query");
                if let Some(why) = scrape::check(url).err().or(query) {
                    let like = "must be like \"http://127.0.0.1:30000\"";
                    self.source.tell(place, format!("{url:?} {why}, {like}"));
                }
                Some(Abort::Http { url: url.clone(), api_key: self.api_key(api_key_env, api_key_file) })
            }
        }
    }

    /// Where the key is; it is not read here, but it must be there.
    fn api_key(&self, env: &Option<Placed<String>>, file: &Option<Placed<String>>) -> Option<ApiKeyFrom> {
        if let Some(Placed { value, place }) = env {
            if (self.source.env.var)(value).is_none() {
                self.source.tell(place, format!("environment variable {value} is not set"));
            }
            return Some(ApiKeyFrom::Env(value.clone()));
        }
        self.readable(file).map(ApiKeyFrom::File)
    }
}
