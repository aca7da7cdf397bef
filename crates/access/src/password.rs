//! Hashes of passwords: argon2id for our own, and those that RabbitMQ makes, so that users can be brought along.

use argon2::password_hash::phc::PasswordHash as Phc;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nexo_broker::access::{HashAlgorithm, PasswordHash};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::limits::{HASH_MEMORY_KIB_MAX, HASH_PASSES_MAX};

/// Bytes of salt before the digest in RabbitMQ's hashes.
const SALT_BYTES: usize = 4;

/// A hash that cannot be taken over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HashError {
    /// Made in a way that is not known.
    #[error(
        "passwords hashed with '{name}' cannot be checked; known are rabbit_password_hashing_sha256 and rabbit_password_hashing_sha512"
    )]
    Unknown {
        /// How it was made.
        name: String,
    },
    /// Not what the algorithm makes.
    #[error("a password's hash is not one of {name}")]
    Malformed {
        /// How it should have been made.
        name: String,
    },
}

/// Hashes a password as our own are. It takes some 20 ms and 19 MiB: not on a thread of the runtime.
pub(crate) fn hash(password: &[u8]) -> Result<PasswordHash, HashError> {
    let hashed = Argon2::default().hash_password(password);
    let hashed = hashed.map_err(|_| HashError::Malformed { name: "argon2id".to_owned() })?;
    Ok(PasswordHash { algorithm: HashAlgorithm::Argon2id, hash: hashed.to_string().into_bytes().into() })
}

/// Whether a password is the one that was hashed. How long it takes says nothing of how much of it was right.
pub(crate) fn matches(hash: &PasswordHash, password: &[u8]) -> bool {
    match hash.algorithm {
        HashAlgorithm::Argon2id => argon2_matches(&hash.hash, password),
        HashAlgorithm::SaltedSha256 => salted_matches::<Sha256>(&hash.hash, password),
        HashAlgorithm::SaltedSha512 => salted_matches::<Sha512>(&hash.hash, password),
    }
}

/// Whether checking against it is slow.
pub(crate) const fn is_slow(hash: &PasswordHash) -> bool {
    matches!(hash.algorithm, HashAlgorithm::Argon2id)
}

fn argon2_matches(hash: &[u8], password: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(hash) else { return false };
    let Ok(parsed) = Phc::new(text) else { return false };
    is_bounded(&parsed) && Argon2::default().verify_password(password, &parsed).is_ok()
}

/// Whether a hash asks for no more than a login may cost.
fn is_bounded(hash: &Phc) -> bool {
    Params::try_from(hash)
        .is_ok_and(|params| params.m_cost() <= HASH_MEMORY_KIB_MAX && params.t_cost() <= HASH_PASSES_MAX)
}

fn salted_matches<D: Digest>(hash: &[u8], password: &[u8]) -> bool {
    let Some((salt, digest)) = hash.split_at_checked(SALT_BYTES) else { return false };
    let found = D::new().chain_update(salt).chain_update(password).finalize();
    found.as_slice().ct_eq(digest).into()
}

/// Which algorithm RabbitMQ means by this name.
///
/// # Errors
/// If it is none that can be checked.
pub fn rabbitmq_algorithm(name: &str) -> Result<HashAlgorithm, HashError> {
    match name {
        // Without a name it is the default.
        "" | "rabbit_password_hashing_sha256" => Ok(HashAlgorithm::SaltedSha256),
        "rabbit_password_hashing_sha512" => Ok(HashAlgorithm::SaltedSha512),
        "argon2id" => Ok(HashAlgorithm::Argon2id),
        _ => Err(HashError::Unknown { name: name.to_owned() }),
    }
}

/// A hash as RabbitMQ writes it down: base64 of the salt and the digest. Our own are written as they are.
///
/// # Errors
/// If it is not what the algorithm makes.
pub fn rabbitmq_hash(algorithm: &str, text: &str) -> Result<PasswordHash, HashError> {
    let known = rabbitmq_algorithm(algorithm)?;
    let malformed = || HashError::Malformed {
        name: if algorithm.is_empty() {
            "rabbit_password_hashing_sha256".to_owned()
        } else {
            algorithm.to_owned()
        },
    };
    let hash = match known {
        HashAlgorithm::Argon2id => {
            let is_usable = Phc::new(text).is_ok_and(|hash| is_bounded(&hash));
            is_usable.then(|| text.as_bytes().to_vec()).ok_or_else(malformed)?
        }
        HashAlgorithm::SaltedSha256 | HashAlgorithm::SaltedSha512 => {
            let bytes = STANDARD.decode(text).map_err(|_| malformed())?;
            let digest = if known == HashAlgorithm::SaltedSha256 { 32 } else { 64 };
            if bytes.len() != SALT_BYTES + digest {
                return Err(malformed());
            }
            bytes
        }
    };
    Ok(PasswordHash { algorithm: known, hash: hash.into() })
}

/// A hash and the name of its algorithm, as [`rabbitmq_hash`] takes them.
#[must_use]
pub fn shown_hash(hash: &PasswordHash) -> (&'static str, String) {
    match hash.algorithm {
        HashAlgorithm::Argon2id => ("argon2id", String::from_utf8_lossy(&hash.hash).into_owned()),
        HashAlgorithm::SaltedSha256 => ("rabbit_password_hashing_sha256", STANDARD.encode(&hash.hash)),
        HashAlgorithm::SaltedSha512 => ("rabbit_password_hashing_sha512", STANDARD.encode(&hash.hash)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_hashes_are_salted_and_take_one_password() {
        let (one, other) = (hash(b"secret").unwrap(), hash(b"secret").unwrap());
        assert_ne!(one, other, "two users with the same password cannot be told by their hashes");
        assert!(matches(&one, b"secret") && !matches(&one, b"secreT") && !matches(&one, b""));
        assert!(one.hash.starts_with(b"$argon2id$v=19$m=19456,t=2,p=1$"));
    }

    /// The example of RabbitMQ's documentation: password `test12`.
    #[test]
    fn a_hash_of_rabbitmq_is_checked() {
        let known = rabbitmq_hash(
            "rabbit_password_hashing_sha256",
            "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
        );
        let known = known.unwrap();
        assert!(matches(&known, b"test12") && !matches(&known, b"test13"));
        assert_eq!(rabbitmq_hash("", shown_hash(&known).1.as_str()), Ok(known));
    }

    #[test]
    fn a_hash_of_sha_512_is_checked() {
        let salt = [1, 2, 3, 4];
        let digest = Sha512::new().chain_update(salt).chain_update(b"pw").finalize();
        let text = STANDARD.encode([&salt[..], &digest].concat());
        let known = rabbitmq_hash("rabbit_password_hashing_sha512", &text).unwrap();
        assert!(matches(&known, b"pw") && !matches(&known, b"pW"));
        assert_eq!(shown_hash(&known), ("rabbit_password_hashing_sha512", text));
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        for (algorithm, text) in [
            ("rabbit_password_hashing_md5", "kI3GCqW5JLMJa4iX1lo7X4D6XbY="),
            ("rabbit_password_hashing_sha256", "not base64!"),
            ("rabbit_password_hashing_sha512", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"),
            ("argon2id", "$argon2id$v=19$m=9999999,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNoaGFzaA"),
            ("argon2id", "x"),
        ] {
            assert!(rabbitmq_hash(algorithm, text).is_err(), "{algorithm} {text}");
        }
        let empty = PasswordHash { algorithm: HashAlgorithm::SaltedSha256, hash: [].into() };
        assert!(!matches(&empty, b""));
    }
}
