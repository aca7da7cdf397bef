//! AWS Signature V4: who sent a request, and that nobody has changed it since.
//!
//! - [`keys`]: the keys that the broker knows.
//! - `claim.rs`: what a request says about its own signature, in a header or in its address.
//! - `canonical.rs`: the text that is signed.
//! - `verify.rs`: whether it holds.

mod canonical;
mod claim;
mod keys;
mod verify;

pub(crate) use claim::Credential;
pub use keys::{AccessKey, AccessKeyError};
pub(crate) use verify::Signed;
