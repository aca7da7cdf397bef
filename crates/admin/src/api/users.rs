//! Users: list, look at, make, change, delete; and how much each may have.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_access::{NewPassword, Tag, User, UserChangeError, UserLimits, UserName, rabbitmq_hash, shown_hash};
use nexo_broker::AccessChangeError;
use nexo_broker::access::{AccessError, AccessRecord, PasswordHash};
use serde_json::{Map, Value, json};

use super::Api;
use super::body::{Fields, JsonBody};
use super::error::ApiError;

const DEFAULT_ALGORITHM: &str = "rabbit_password_hashing_sha256";

pub(super) async fn list(State(api): State<Api>) -> Result<Response, ApiError> {
    api.look_for(|api| api.broker.access().users().map(|user| user_json(user)).collect()).await
}

pub(super) async fn list_without_permissions(State(api): State<Api>) -> Result<Response, ApiError> {
    api.look_for(|api| {
        let access = api.broker.access();
        access.users().filter(|user| user.permissions.is_empty()).map(|user| user_json(user)).collect()
    })
    .await
}

pub(super) async fn show(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    Ok(Json(user_json(&*found(&api, &name)?)))
}

/// Makes a user, or changes all of one that is there: as in RabbitMQ, one without a password has none afterwards.
pub(super) async fn put(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let asked = UserAsked::of(&name, &body.object)?;
    let password = match asked.password {
        AskedPassword::Plain(plain) => api.logins.hashed(NewPassword::Plain(plain)).await?,
        AskedPassword::Hashed(hash) => hash,
    };
    let (user, tags, limits) = (asked.user, asked.tags, asked.limits);
    let is_there = || api.broker.access().user(user.as_str()).is_some();
    loop {
        let was_there = is_there();
        let changes = changes_of(&user, was_there, password.clone(), tags.clone(), limits);
        match api.logins.change(&changes).await {
            Ok(()) => return Ok(if was_there { StatusCode::NO_CONTENT } else { StatusCode::CREATED }),
            // Somebody made or deleted him meanwhile.
            Err(error) if is_there() != was_there && is_about_being(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_about_being(error: &UserChangeError) -> bool {
    let UserChangeError::Change(AccessChangeError::Refused(refused)) = error else { return false };
    matches!(refused, AccessError::Exists { .. } | AccessError::NoSuchUser { .. })
}

/// What makes a user what was asked for.
pub(super) fn changes_of(
    user: &UserName,
    is_there: bool,
    password: Option<PasswordHash>,
    tags: BTreeSet<Tag>,
    limits: Option<UserLimits>,
) -> Vec<AccessRecord> {
    let user = || user.clone();
    let mut changes = match is_there {
        false => vec![AccessRecord::Add { user: user(), password, tags }],
        true => vec![
            AccessRecord::SetPassword { user: user(), password },
            AccessRecord::SetTags { user: user(), tags },
        ],
    };
    changes.extend(limits.map(|limits| AccessRecord::SetLimits { user: user(), limits }));
    changes
}

/// A user as an object of JSON describes it.
pub(super) struct UserAsked {
    pub(super) user: UserName,
    pub(super) password: AskedPassword,
    pub(super) tags: BTreeSet<Tag>,
    pub(super) limits: Option<UserLimits>,
}

/// What a user is to log in with.
pub(super) enum AskedPassword {
    /// To be hashed.
    Plain(Vec<u8>),
    /// What is to be kept; nothing, if he is to have no password.
    Hashed(Option<PasswordHash>),
}

impl UserAsked {
    /// Reads the fields `password` or `password_hash` with `hashing_algorithm`, `tags` and `limits`.
    pub(super) fn of(name: &str, object: &Map<String, Value>) -> Result<Self, ApiError> {
        let user = UserName::new(name)?;
        let tags = object.get("tags").filter(|tags| !tags.is_null());
        let tags = match tags {
            Some(tags) => read_tags(tags)?,
            // As in files of long ago.
            None if object.truth("administrator", false)? => [Tag::new(Tag::ADMINISTRATOR)?].into(),
            None if object.contains_key("administrator") => BTreeSet::new(),
            None => return Err(ApiError::bad_request("tags_not_present")),
        };
        let limits = match object.table("limits")? {
            limits if limits.is_empty() => None,
            limits => Some(read_limits(&limits)?),
        };
        let hash = object.text_or_nothing("password_hash")?;
        let password = match (object.text_or_nothing("password")?, hash) {
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request("both_password_and_password_hash_are_provided"));
            }
            (Some(plain), None) => AskedPassword::Plain(plain.as_bytes().to_vec()),
            (None, Some("") | None) => AskedPassword::Hashed(None),
            (None, Some(hash)) => {
                let algorithm = object.text_or_nothing("hashing_algorithm")?.unwrap_or_default();
                let hash = rabbitmq_hash(algorithm, hash);
                AskedPassword::Hashed(Some(hash.map_err(UserChangeError::from)?))
            }
        };
        Ok(Self { user, password, tags, limits })
    }
}

/// A list of texts, or one text with commas.
fn read_tags(given: &Value) -> Result<BTreeSet<Tag>, ApiError> {
    let texts = super::vhosts::tags(given)?;
    texts.iter().map(|text| Ok(Tag::new(text)?)).collect()
}

fn read_limits(given: &Map<String, Value>) -> Result<UserLimits, ApiError> {
    let mut limits = UserLimits::default();
    for name in given.keys() {
        *limit_named(&mut limits, name)? = limit_of(given.whole(name)?)?;
    }
    Ok(limits)
}

fn limit_named<'l>(limits: &'l mut UserLimits, name: &str) -> Result<&'l mut Option<u32>, ApiError> {
    match name {
        "max-connections" => Ok(&mut limits.max_connections),
        "max-channels" => Ok(&mut limits.max_channels),
        _ => Err(ApiError::bad_request(format!("there is no limit {name:?}"))),
    }
}

/// Below 0 is no limit, as in RabbitMQ.
fn limit_of(value: Option<i64>) -> Result<Option<u32>, ApiError> {
    let value = value.ok_or_else(|| ApiError::bad_request("[{key_missing,value}]"))?;
    if value < 0 {
        return Ok(None);
    }
    let too_large = || ApiError::bad_request(format!("a limit of a user is at most {}", u32::MAX));
    u32::try_from(value).map(Some).map_err(|_| too_large())
}

pub(super) async fn delete(State(api): State<Api>, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let user = found(&api, &name)?;
    api.logins.delete_user(&user.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes several users, all of them or none. As in RabbitMQ, one that is not there is a mistake.
pub(super) async fn delete_many(State(api): State<Api>, body: JsonBody) -> Result<StatusCode, ApiError> {
    let wrong = || ApiError::bad_request("users must be a list of texts");
    let names = body.object.get("users").and_then(Value::as_array).ok_or_else(wrong)?;
    let names: Vec<&str> =
        names.iter().map(|name| name.as_str().ok_or_else(wrong)).collect::<Result<_, _>>()?;
    let missing = |name: &str| ApiError::bad_request(json!(["no_such_user", name]));
    let users: BTreeSet<UserName> = {
        let access = api.broker.access();
        let found = names.iter().map(|name| access.user(name).ok_or_else(|| missing(name)));
        found.map(|user| Ok(user?.name.clone())).collect::<Result<_, ApiError>>()?
    };
    let changes: Vec<AccessRecord> = users.into_iter().map(|user| AccessRecord::Delete { user }).collect();
    api.logins.change(&changes).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn limits(State(api): State<Api>) -> Result<Response, ApiError> {
    api.look_for(|api| api.broker.access().users().filter_map(|user| of_limits(user)).collect()).await
}

pub(super) async fn limits_of(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(of_limits(&*found(&api, &name)?).into_iter().collect()))
}

pub(super) async fn set_limit(
    State(api): State<Api>,
    Path((user, limit)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    change_limit(&api, &user, &limit, limit_of(body.object.whole("value")?)?).await
}

pub(super) async fn clear_limit(
    State(api): State<Api>,
    Path((user, limit)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    change_limit(&api, &user, &limit, None).await
}

async fn change_limit(
    api: &Api,
    user: &str,
    limit: &str,
    value: Option<u32>,
) -> Result<StatusCode, ApiError> {
    let user = found(api, user)?;
    let mut limits = user.limits;
    *limit_named(&mut limits, limit)? = value;
    api.logins.change(&[AccessRecord::SetLimits { user: user.name.clone(), limits }]).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A user that is there.
pub(super) fn found(api: &Api, name: &str) -> Result<Arc<User>, ApiError> {
    api.broker.access().user(name).cloned().ok_or_else(ApiError::not_found)
}

/// With the hash, as RabbitMQ shows it to administrators: definitions are made of it.
pub(super) fn user_json(user: &User) -> Value {
    let tags: Vec<&str> = user.tags.iter().map(|tag| tag.as_str()).collect();
    // Of who has no password RabbitMQ shows an empty hash, and the algorithm that it would use.
    let none = || (DEFAULT_ALGORITHM, String::new());
    let (algorithm, hash) = user.password.as_ref().map_or_else(none, shown_hash);
    json!({
        "name": user.name.as_str(),
        "password_hash": hash,
        "hashing_algorithm": algorithm,
        "tags": tags,
        "limits": limits_json(user),
    })
}

fn of_limits(user: &User) -> Option<Value> {
    let limits = limits_json(user);
    (!limits.is_empty()).then(|| json!({ "user": user.name.as_str(), "value": limits }))
}

fn limits_json(user: &User) -> Map<String, Value> {
    let all = [("max-connections", user.limits.max_connections), ("max-channels", user.limits.max_channels)];
    all.into_iter().filter_map(|(name, max)| Some((name.to_owned(), max?.into()))).collect()
}

impl From<UserChangeError> for ApiError {
    fn from(error: UserChangeError) -> Self {
        match &error {
            UserChangeError::Change(AccessChangeError::Queue(_)) | UserChangeError::Busy => {
                Self::unavailable(error.to_string())
            }
            UserChangeError::Change(AccessChangeError::Refused(AccessError::NoSuchUser { .. })) => {
                Self::not_found()
            }
            UserChangeError::Change(AccessChangeError::Refused(_))
            | UserChangeError::Hash(_)
            | UserChangeError::PasswordLength => Self::bad_request(error.to_string()),
        }
    }
}
