//! Tokens that somebody else has signed: what holds, what does not, and what it lets its bearer do.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use nexo_access::{
    FirstUser, Identity, LoginError, Logins, OAuth, OAuthOptions, Permission, PublishRights, Resource, Tag,
};
use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::MemoryDisk;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const RSA: &[u8] = include_bytes!("keys/rsa.pk8");
const RSA_PUBLIC: &str = include_str!("keys/rsa.pem");

/// Somebody who signs tokens.
struct Issuer(EcdsaKeyPair);

fn encoded(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).unwrap())
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header), encoded(claims));
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn token(&self, claims: &Value) -> String {
        self.sign(&json!({ "alg": "ES256", "typ": "JWT" }), claims)
    }

    /// Its public key among others.
    fn jwks(&self, id: &str) -> String {
        let point = self.0.public_key().as_ref();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({ "keys": [
            { "kty": "oct", "kid": "shared", "k": "c2VjcmV0" },
            { "kty": "EC", "crv": "P-256", "use": "sig", "kid": id, "x": part(&point[1..33]), "y": part(&point[33..]) },
        ] })
        .to_string()
    }

    fn pem(&self) -> String {
        let head = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
        let der = [&head[..], self.0.public_key().as_ref()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }
}

/// A token of RS256.
fn rsa_token(header: &Value, claims: &Value) -> String {
    let key = RsaKeyPair::from_pkcs8(RSA).unwrap();
    let message = format!("{}.{}", encoded(header), encoded(claims));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature).unwrap();
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// The claims of a token that holds for a while, with others in their place.
fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://id.example",
        "sub": "ann",
        "aud": ["other", "nexo"],
        "exp": now_s() + 600,
        "scope": "nexo.read:%2F/mine-* nexo.tag:administrator openid",
    });
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

fn keys(text: &str) -> OAuth {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    std::fs::write(&path, text).unwrap();
    let issuer = Some("https://id.example".into());
    OAuth::load(&OAuthOptions { keys: path, audience: "nexo".into(), issuer }).unwrap()
}

async fn logins(public: &str) -> Logins {
    let disk = Arc::new(MemoryDisk::new());
    let broker = Broker::open_on(disk, BrokerOptions::new("memory")).unwrap();
    let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
    logins.set_oauth(Some(keys(public)));
    logins
}

async fn bearer(logins: &Logins, token: &str) -> Result<Identity, LoginError> {
    // From somewhere else every time, so that no wrong one has another wait.
    let from = IpAddr::from(std::net::Ipv4Addr::from(fastrand_like(token)));
    logins.token(token, from).await
}

fn fastrand_like(text: &str) -> u32 {
    text.bytes().fold(0x0a00_0000, |sum, byte| sum.rotate_left(5) ^ u32::from(byte))
}

#[tokio::test]
async fn a_token_lets_its_bearer_do_what_its_scopes_say() {
    let issuer = Issuer::new();
    let logins = logins(&issuer.pem()).await;
    let ann = bearer(&logins, &issuer.token(&claims(&json!({})))).await.unwrap();
    assert_eq!(ann.name().as_str(), "ann");
    assert!(ann.is(Tag::ADMINISTRATOR) && ann.is_known());
    assert_eq!(ann.tags(), ["administrator"]);
    ann.may("/", Permission::Read, Resource::queue("mine-a")).unwrap();
    ann.may_see("/", Resource::queue("mine-a")).unwrap();
    ann.may_enter("/").unwrap();
    let refused = ann.may("/", Permission::Write, Resource::queue("mine-a")).unwrap_err();
    assert_eq!(refused.to_string(), "access to queue 'mine-a' in vhost '/' refused for user 'ann'");
    assert!(ann.may("/", Permission::Read, Resource::queue("other")).is_err());
    assert!(ann.may_enter("shop").is_err() && ann.user().is_none());
    let left = ann.time_left().unwrap();
    assert!(left > Duration::from_secs(595) && left <= Duration::from_secs(605), "{left:?}");
}

#[tokio::test]
async fn scopes_and_audiences_are_a_text_or_a_list() {
    let issuer = Issuer::new();
    let logins = logins(&issuer.jwks("one")).await;
    for changes in [
        json!({ "scope": ["nexo.read:*/*", "x"], "aud": "nexo" }),
        json!({ "scope": "nexo.read:*/*", "aud": "other nexo" }),
        json!({ "scope": "nexo.read:*/*", "sub": null, "client_id": "ann" }),
        json!({ "scope": "nexo.read:*/*", "nbf": now_s() - 10 }),
        json!({ "scope": "nexo.read:*/*", "exp": now_s() as f64 + 60.5 }),
        json!({ "scope": "nexo.read:*/*", "exp": now_s() - 2, "nbf": now_s() + 2 }),
    ] {
        let ann = bearer(&logins, &issuer.token(&claims(&changes))).await.unwrap();
        assert_eq!(ann.name().as_str(), "ann", "{changes}");
        ann.may("shop", Permission::Read, Resource::queue("q")).unwrap();
    }
}

#[tokio::test]
async fn a_token_that_says_something_else_does_not_hold() {
    let issuer = Issuer::new();
    let logins = logins(&issuer.pem()).await;
    for changes in [
        json!({ "exp": now_s() - 60 }),
        json!({ "exp": null }),
        json!({ "exp": "soon" }),
        json!({ "exp": -1 }),
        json!({ "nbf": now_s() + 60 }),
        json!({ "iss": "https://evil.example" }),
        json!({ "iss": null }),
        json!({ "aud": "other" }),
        json!({ "aud": "nexo2" }),
        json!({ "aud": null }),
        json!({ "aud": [] }),
        json!({ "sub": "" }),
        json!({ "sub": null }),
        json!({ "sub": "a\nb" }),
        json!({ "scope": 1 }),
    ] {
        let refused = bearer(&logins, &issuer.token(&claims(&changes))).await.map(drop);
        assert_eq!(refused, Err(LoginError::Invalid), "{changes}");
    }
}

#[tokio::test]
async fn nobody_signs_but_the_keys_that_are_known() {
    let (issuer, evil) = (Issuer::new(), Issuer::new());
    let logins = logins(&issuer.jwks("one")).await;
    let claims = claims(&json!({}));
    let good = issuer.token(&claims);
    bearer(&logins, &good).await.unwrap();
    bearer(&logins, &issuer.sign(&json!({ "alg": "ES256", "kid": "one" }), &claims)).await.unwrap();

    let parts: Vec<&str> = good.split('.').collect();
    let more = json!({ "sub": "root", "aud": "nexo", "exp": now_s() + 600, "scope": "nexo.write:*/*" });
    let mut refused = vec![
        evil.token(&claims),
        issuer.sign(&json!({ "alg": "ES256", "kid": "two" }), &claims),
        issuer.sign(&json!({ "alg": "ES256", "crit": ["b64"], "b64": false }), &claims),
        issuer.sign(&json!({ "alg": "RS256" }), &claims),
        issuer.sign(&json!({ "alg": "HS256", "kid": "shared" }), &claims),
        issuer.sign(&json!({ "alg": "es256" }), &claims),
        issuer.sign(&json!({}), &claims),
        rsa_token(&json!({ "alg": "ES256" }), &claims),
        rsa_token(&json!({ "alg": "RS256" }), &claims),
        format!("{}.{}.{}", parts[0], encoded(&more), parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{good}="),
        format!("{good}.x"),
        format!("{good}A"),
        String::new(),
        "..".to_owned(),
        "eyJ.eyJ.x".to_owned(),
    ];
    for algorithm in ["none", "None", "NONE", ""] {
        let header = encoded(&json!({ "alg": algorithm }));
        refused.push(format!("{header}.{}.", parts[1]));
        refused.push(format!("{header}.{}.{}", parts[1], parts[2]));
    }
    // The public key as a shared secret: the oldest trick.
    let message = format!("{}.{}", encoded(&json!({ "alg": "HS256" })), parts[1]);
    let mac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, issuer.pem().as_bytes());
    let tag = ring::hmac::sign(&mac, message.as_bytes());
    refused.push(format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag)));
    // And one that is too long.
    refused.push(issuer.token(&self::claims(&json!({ "pad": "x".repeat(20_000) }))));
    for token in refused {
        assert_eq!(bearer(&logins, &token).await.map(drop), Err(LoginError::Invalid), "{token}");
    }
}

#[tokio::test]
async fn rsa_keys_sign_as_well() {
    let both = format!("{RSA_PUBLIC}\n{}", Issuer::new().pem());
    let logins = logins(&both).await;
    let token = rsa_token(&json!({ "alg": "RS256", "kid": "whatever" }), &claims(&json!({})));
    assert_eq!(bearer(&logins, &token).await.unwrap().name().as_str(), "ann");
    let mut wrong = token.clone();
    wrong.replace_range(
        wrong.len() - 10..wrong.len() - 9,
        if wrong.as_bytes()[wrong.len() - 10] == b'A' { "B" } else { "A" },
    );
    assert!(bearer(&logins, &wrong).await.is_err());
    // The same key as a JWKS has it.
    let key = RsaKeyPair::from_pkcs8(RSA).unwrap();
    let part = |bytes: Vec<u8>| URL_SAFE_NO_PAD.encode(bytes);
    let components: ring::rsa::PublicKeyComponents<Vec<u8>> = key.public().into();
    let jwk = json!({ "kty": "RSA", "kid": "r", "n": part(components.n), "e": part(components.e) });
    for (alg, holds) in [(json!(null), true), (json!("RS256"), true), (json!("RS512"), false)] {
        let mut jwk = jwk.clone();
        jwk["alg"] = alg;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jwks.json");
        std::fs::write(&path, json!({ "keys": [jwk] }).to_string()).unwrap();
        let options = OAuthOptions { keys: path, audience: "nexo".into(), issuer: None };
        let Ok(oauth) = OAuth::load(&options) else {
            assert!(!holds);
            continue;
        };
        logins.set_oauth(Some(oauth));
        let token = rsa_token(&json!({ "alg": "RS256", "kid": "r" }), &claims(&json!({})));
        assert_eq!(bearer(&logins, &token).await.is_ok(), holds);
    }
}

#[tokio::test]
async fn a_token_stands_in_for_a_password_and_passwords_still_do() {
    let issuer = Issuer::new();
    let logins = logins(&issuer.pem()).await;
    let token = issuer.token(&claims(&json!({})));
    let ann = logins.password(b"anything", token.as_bytes(), HERE).await.unwrap();
    assert_eq!(ann.name().as_str(), "ann", "the name is the token's");
    logins.password(b"guest", b"guest", HERE).await.unwrap();
    let expired = issuer.token(&claims(&json!({ "exp": now_s() - 60 })));
    assert!(logins.password(b"guest", expired.as_bytes(), HERE).await.is_err());
    let headers = |value: String| {
        http::HeaderMap::from_iter([("authorization".parse().unwrap(), value.parse().unwrap())])
    };
    let basic = STANDARD.encode(format!("x:{token}"));
    for value in [format!("Bearer {token}"), format!("bearer {token}"), format!("Basic {basic}")] {
        assert_eq!(logins.authenticate(&headers(value), HERE).await.unwrap().name().as_str(), "ann");
    }
    logins.set_oauth(None);
    assert!(logins.token(&token, HERE).await.is_err(), "nobody's tokens are taken any more");
}

#[tokio::test]
async fn what_a_token_grants_ends_when_it_expires_and_goes_on_with_a_new_one() {
    let issuer = Issuer::new();
    let logins = logins(&issuer.pem()).await;
    // Five seconds of leeway, so this one has a second left.
    let old = bearer(&logins, &issuer.token(&claims(&json!({ "exp": now_s() - 4 })))).await.unwrap();
    let mut rights = PublishRights::default();
    let writer = issuer.token(&claims(&json!({ "scope": "nexo.write:*/*" })));
    let new = logins.renewed(&old, writer.as_bytes()).unwrap();
    rights.check(&new, "/", "amq.topic").unwrap();
    assert!(rights.knows(&new, b"amq.topic"));
    for wrong in [
        issuer.token(&claims(&json!({ "sub": "bob" }))),
        issuer.token(&claims(&json!({ "exp": now_s() - 60 }))),
        Issuer::new().token(&claims(&json!({}))),
        "secret".to_owned(),
    ] {
        assert!(logins.renewed(&old, wrong.as_bytes()).is_err());
    }
    tokio::time::timeout(Duration::from_secs(10), old.expired()).await.unwrap();
    assert!(!old.is_known() && !old.is(Tag::ADMINISTRATOR) && old.may_enter("/").is_err());
    assert!(new.is_known());
    let guest = logins.password(b"guest", b"guest", HERE).await.unwrap();
    assert!(logins.renewed(&guest, b"anything").is_ok() && guest.time_left().is_none());
}
