//! Names of users, tags and virtual hosts: texts that were checked.

pub(super) use nexo_types::check_name as check;
use nexo_types::{NameError, VhostName};
pub use nexo_types::{Tag, UserName};

/// Checks a text that is to name a virtual host.
///
/// # Errors
/// Says which rule the text breaks.
pub fn check_vhost(text: &str) -> Result<(), NameError> {
    VhostName::new(text).map(drop)
}
