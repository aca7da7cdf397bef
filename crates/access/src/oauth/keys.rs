//! Public keys, and signatures by them: RS256 and ES256, nothing else. Which of the two a key is for is the key's matter and
//! never the token's, so a token cannot have a public key taken for a shared secret.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;

use crate::limits::{OAUTH_KEYS_BYTES_MAX, OAUTH_KEYS_MAX};

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
}

impl Algorithm {
    /// The one that a token's `alg` names, if it is taken. `none` is not.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }
}

/// All keys.
#[derive(Debug)]
pub(super) struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    /// What tokens call it; any token may be signed by one without.
    id: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    /// Modulus and exponent.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// The same, as DER.
    RsaDer(Vec<u8>),
    /// A point of P-256, uncompressed.
    P256(Vec<u8>),
}

impl Key {
    const fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Rsa { .. } | Material::RsaDer(_) => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
        }
    }

    fn verifies(&self, message: &[u8], signed: &[u8]) -> bool {
        // Keys below 2,048 bits verify nothing.
        let rsa = &signature::RSA_PKCS1_2048_8192_SHA256;
        match &self.material {
            Material::Rsa { n, e } => RsaPublicKeyComponents { n, e }.verify(rsa, message, signed).is_ok(),
            Material::RsaDer(der) => UnparsedPublicKey::new(rsa, der).verify(message, signed).is_ok(),
            Material::P256(point) => {
                let p256 = &signature::ECDSA_P256_SHA256_FIXED;
                UnparsedPublicKey::new(p256, point).verify(message, signed).is_ok()
            }
        }
    }
}

impl Keys {
    /// Reads a file: a JWKS if it is JSON, otherwise PEM.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > OAUTH_KEYS_BYTES_MAX {
            return Err(format!("it has more than {OAUTH_KEYS_BYTES_MAX} bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "it is neither PEM nor a JWKS".to_owned())?;
        let keys = if text.trim_start().starts_with('{') { jwks(text)? } else { pem(text)? };
        match keys.len() {
            0 => Err("there is no public key in it for RS256 or ES256".to_owned()),
            count if count > OAUTH_KEYS_MAX => {
                Err(format!("there are more than {OAUTH_KEYS_MAX} keys in it"))
            }
            _ => Ok(Self(keys)),
        }
    }

    /// Whether one of them has signed this.
    pub(super) fn verify(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
        message: &[u8],
        signed: &[u8],
    ) -> bool {
        let fits = |key: &&Key| {
            let named = key.id.is_none() || id.is_none() || key.id.as_deref() == id;
            named && key.algorithm() == algorithm
        };
        self.0.iter().filter(fits).any(|key| key.verifies(message, signed))
    }
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The keys of a set that are for signatures that are taken. Others are passed over: a set is for many.
fn jwks(text: &str) -> Result<Vec<Key>, String> {
    let set: Jwks = serde_json::from_str(text).map_err(|error| format!("it is no JWKS: {error}"))?;
    Ok(set.keys.into_iter().filter_map(Jwk::into_key).collect())
}

impl Jwk {
    fn into_key(self) -> Option<Key> {
        if self.purpose.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let decoded = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?.trim_end_matches('=')).ok();
        let material = match &*self.kty {
            "RSA" => Material::Rsa { n: decoded(self.n)?, e: decoded(self.e)? },
            "EC" if self.crv.as_deref() == Some("P-256") => {
                let (x, y) = (decoded(self.x)?, decoded(self.y)?);
                if x.len() != 32 || y.len() != 32 {
                    return None;
                }
                Material::P256([&[4][..], &x, &y].concat())
            }
            _ => return None,
        };
        let key = Key { id: self.kid, material };
        // One that is for RS512 only is not for RS256.
        let fits = self.alg.is_none_or(|name| Algorithm::named(&name) == Some(key.algorithm()));
        fits.then_some(key)
    }
}

/// The public keys of a PEM file.
fn pem(text: &str) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    let mut block: Option<(&str, String)> = None;
    for line in text.lines().map(str::trim) {
        let mark = |begin: &str| line.strip_prefix(begin).and_then(|rest| rest.strip_suffix("-----"));
        if let Some(label) = mark("-----BEGIN ") {
            if label.contains("PRIVATE") {
                return Err("there is a private key in it; only the public ones belong here".to_owned());
            }
            block = Some((label, String::new()));
        } else if mark("-----END ").is_some() {
            let Some((label, encoded)) = block.take() else { continue };
            let der = STANDARD.decode(encoded).map_err(|_| format!("its {label} is not base64"))?;
            let material = match label {
                "PUBLIC KEY" => public_key(&der),
                "RSA PUBLIC KEY" => Some(Material::RsaDer(der)),
                _ => continue,
            };
            let material = material.ok_or("a key in it is neither RSA nor of the curve P-256")?;
            keys.push(Key { id: None, material });
        } else if let Some((_, encoded)) = &mut block {
            encoded.push_str(line);
        }
    }
    Ok(keys)
}

/// The key in a `SubjectPublicKeyInfo`.
fn public_key(der: &[u8]) -> Option<Material> {
    const SEQUENCE: u8 = 0x30;
    const BIT_STRING: u8 = 0x03;
    /// The object identifiers rsaEncryption; ecPublicKey and prime256v1.
    const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
    const P256: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
    let (whole, _) = element(der, SEQUENCE)?;
    let (algorithm, rest) = element(whole, SEQUENCE)?;
    let (bits, _) = element(rest, BIT_STRING)?;
    let key = bits.strip_prefix(&[0])?.to_vec();
    if algorithm.starts_with(RSA) {
        Some(Material::RsaDer(key))
    } else if algorithm == P256 && key.len() == 65 && key[0] == 4 {
        Some(Material::P256(key))
    } else {
        None
    }
}

/// The content of the first element of DER, if it has this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ ..=0x7f => (usize::from(short), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (long, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*long)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_key_in_it_is_refused_by_name() {
        for (text, reason) in [
            ("", "there is no public key in it for RS256 or ES256"),
            ("\u{0}", "there is no public key in it for RS256 or ES256"),
            ("{\"keys\":[]}", "there is no public key in it for RS256 or ES256"),
            (
                "{\"keys\":[{\"kty\":\"oct\",\"k\":\"c2VjcmV0\"}]}",
                "there is no public key in it for RS256 or ES256",
            ),
            (
                "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----",
                "there is a private key in it; only the public ones belong here",
            ),
            ("-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----", "its PUBLIC KEY is not base64"),
            (
                "-----BEGIN PUBLIC KEY-----\nMAA=\n-----END PUBLIC KEY-----",
                "a key in it is neither RSA nor of the curve P-256",
            ),
        ] {
            assert_eq!(Keys::parse(text.as_bytes()).unwrap_err(), reason, "{text}");
        }
        assert!(Keys::parse(b"{\"keys\":1}").unwrap_err().starts_with("it is no JWKS"));
        assert_eq!(Keys::parse(b"\xff").unwrap_err(), "it is neither PEM nor a JWKS");
        assert!(Keys::parse(&vec![b' '; OAUTH_KEYS_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_length_that_lies_is_no_key() {
        for der in [&b""[..], b"\x30", b"\x30\x05\x00", b"\x30\x82\x01", b"\x30\x84\0\0\0\x01\0", b"\x30\x80"]
        {
            assert!(public_key(der).is_none(), "{der:?}");
        }
    }
}
