//! Pages of a listing. A token names the last queue of the page before it.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::fault::Fault;
use crate::limits::PAGE_MAX;

/// Which part of a listing is asked for.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) max: usize,
    pub(super) after: Option<String>,
    /// Whether whoever asks knows that there may be more: without a maximum AWS gives no token.
    has_token: bool,
}

impl Page {
    pub(super) fn new(max: Option<i64>, token: Option<&str>) -> Result<Self, Fault> {
        let size = match max {
            None => PAGE_MAX,
            Some(max) => {
                let size = usize::try_from(max).ok().filter(|size| (1..=PAGE_MAX).contains(size));
                size.ok_or_else(|| {
                    let reason = format!("Must be an integer from 1 to {PAGE_MAX}, if provided.");
                    Fault::value("MaxResults", &max.to_string(), &reason)
                })?
            }
        };
        let after = token
            .map(|token| {
                let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok();
                bytes
                    .and_then(|bytes| String::from_utf8(bytes).ok())
                    .ok_or_else(|| Fault::value("NextToken", token, "It was not given with an earlier page."))
            })
            .transpose()?;
        Ok(Self { max: size, after, has_token: max.is_some() || token.is_some() })
    }

    /// Cuts what was found, one more than the page holds, to the page; with it the token of the next.
    pub(super) fn cut(&self, mut names: Vec<String>) -> (Vec<String>, Option<String>) {
        let more = names.len() > self.max;
        names.truncate(self.max);
        let token =
            names.last().filter(|_| more && self.has_token).map(|name| BASE64_URL_SAFE_NO_PAD.encode(name));
        (names, token)
    }
}
