//! The secret of a cluster: each side shows that it knows it, by a keyed hash over all that both have said. It is different
//! each time, so nothing that was overheard can be used again.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a number that is used once.
pub(crate) const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub(crate) const PROOF_BYTES: usize = 32;

pub(crate) type Nonce = [u8; NONCE_BYTES];
pub(crate) type Proof = [u8; PROOF_BYTES];

/// Who proves. Neither can give the other's proof back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that connects.
    Connecting,
    /// The other.
    Other,
}

/// A number that nobody could know before.
pub(crate) fn nonce() -> Nonce {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).expect("the system gives random bytes");
    nonce
}

/// A proof over what was said so far. Without a secret it proves nothing, and is the same for all who have none.
pub(crate) fn prove(secret: &[u8], side: Side, said: &[&[u8]]) -> Proof {
    mac(secret, side, said).finalize().into_bytes().into()
}

/// Whether a proof holds. It takes the same time whether or not.
pub(crate) fn holds(proof: &Proof, secret: &[u8], side: Side, said: &[&[u8]]) -> bool {
    mac(secret, side, said).verify_slice(proof).is_ok()
}

fn mac(secret: &[u8], side: Side, said: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of HMAC may be of any length");
    mac.update(match side {
        Side::Connecting => b"nexo peer 1 connecting",
        Side::Other => b"nexo peer 1 other     ",
    });
    for part in said {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_the_same_side_and_the_same_words_prove_it() {
        let said: [&[u8]; 2] = [b"hello", b"challenge"];
        let proof = prove(b"hush", Side::Connecting, &said);
        assert!(holds(&proof, b"hush", Side::Connecting, &said));
        assert!(!holds(&proof, b"hush!", Side::Connecting, &said));
        assert!(!holds(&proof, b"", Side::Connecting, &said));
        assert!(!holds(&proof, b"hush", Side::Other, &said), "it cannot be sent back");
        assert!(!holds(&proof, b"hush", Side::Connecting, &[b"hell", b"ochallenge"]));
        assert_ne!(nonce(), nonce());
    }
}
