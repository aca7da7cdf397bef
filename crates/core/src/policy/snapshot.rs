//! All policies and parameters as bytes, so that recovery need not read the log from its beginning.

use std::sync::Arc;

use bytes::Bytes;

use super::policy::{Policy, PolicyKind};
use super::record::{PolicyRecord, decode_vhost};
use super::state::Policies;
use crate::wire::{Reader, WireError, Writer};

/// The version in which a snapshot is written.
const VERSION: u64 = 1;

impl Policies {
    /// The state as bytes.
    #[must_use]
    pub fn snapshot(&self) -> Bytes {
        let mut out = Writer::with_capacity(256);
        out.version(VERSION);
        for kind in [PolicyKind::Regular, PolicyKind::Operator] {
            out.u64(self.policies(kind).count() as u64);
            for (vhost, policy) in self.policies(kind) {
                out.text(vhost.as_str());
                policy.encode(&mut out);
            }
        }
        out.u64(self.parameters().count() as u64);
        for (vhost, component, name, value) in self.parameters() {
            [vhost.as_str(), component, name, value].into_iter().for_each(|text| out.text(text));
        }
        out.u64(self.globals().len() as u64);
        for (name, value) in self.globals() {
            out.text(name);
            out.text(value);
        }
        out.into_bytes()
    }

    /// The state of a snapshot.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        input.version("the snapshot of policies", VERSION)?;
        let mut policies = Self::new();
        for kind in [PolicyKind::Regular, PolicyKind::Operator] {
            for _ in 0..input.u64()? {
                let (vhost, policy) = (decode_vhost(&mut input)?, Arc::new(Policy::decode(&mut input)?));
                policies.apply_record(&PolicyRecord::Put { kind, vhost, policy });
            }
        }
        for _ in 0..input.u64()? {
            let vhost = decode_vhost(&mut input)?;
            let (component, name) = (input.text()?.into(), input.text()?.into());
            let value = input.text()?.into();
            policies.apply_record(&PolicyRecord::PutParameter { vhost, component, name, value });
        }
        for _ in 0..input.u64()? {
            let (name, value) = (input.text()?.into(), input.text()?.into());
            policies.apply_record(&PolicyRecord::PutGlobal { name, value });
        }
        input.finish()?;
        Ok(policies)
    }
}
