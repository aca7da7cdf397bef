//! The service that manages users. What it changes, `nexo_access` does.

use std::collections::BTreeSet;
use std::sync::Arc;

use nexo_access::{Logins, NewPassword, PermissionTexts, Tag, User, UserChangeError, UserLimits, UserName};
use nexo_broker::AccessChangeError;
use nexo_broker::access::{AccessError, AccessRecord};
use nexo_broker::topology::VhostError;
use tonic::{Code, Request, Response, Status};

use crate::access::administrator;
use crate::fields;
use crate::proto::{self, user_service_server::UserService};
use crate::status::Failure;

/// The virtual host that an empty name stands for.
const DEFAULT_VHOST: &str = "/";

/// Answers [`UserService`] from a broker.
pub(crate) struct Users {
    pub(crate) logins: Logins,
}

impl From<UserChangeError> for Failure {
    fn from(error: UserChangeError) -> Self {
        let code = match &error {
            UserChangeError::Change(AccessChangeError::Queue(error)) => return error.clone().into(),
            UserChangeError::Change(AccessChangeError::Refused(refused)) => match refused {
                AccessError::Exists { .. } | AccessError::IdTaken { .. } => Code::AlreadyExists,
                AccessError::NoSuchUser { .. }
                | AccessError::NoSuchVhost { .. }
                | AccessError::NoSuchId { .. } => Code::NotFound,
                AccessError::TooMany { .. } => Code::ResourceExhausted,
                AccessError::Pattern(_) | AccessError::Name(_) => Code::InvalidArgument,
            },
            UserChangeError::Hash(_) | UserChangeError::PasswordLength => Code::InvalidArgument,
            UserChangeError::Busy => Code::Unavailable,
        };
        Self { code, message: error.to_string() }
    }
}

fn user(name: &str) -> Result<UserName, Failure> {
    UserName::new(name).map_err(|error| fields::named("user", &error))
}

fn tags(texts: &[String]) -> Result<BTreeSet<Tag>, Failure> {
    texts.iter().map(|text| Tag::new(text).map_err(|error| fields::named("tags", &error))).collect()
}

fn vhost(name: &str) -> Arc<str> {
    if name.is_empty() { DEFAULT_VHOST.into() } else { name.into() }
}

fn password(given: Option<String>) -> NewPassword {
    given.map_or(NewPassword::None, |password| NewPassword::Plain(password.into_bytes()))
}

impl Users {
    async fn change(&self, change: AccessRecord) -> Result<(), Status> {
        Ok(self.logins.change(&[change]).await.map_err(Failure::from)?)
    }
}

#[tonic::async_trait]
impl UserService for Users {
    async fn list_users(
        &self,
        request: Request<proto::ListUsersRequest>,
    ) -> Result<Response<proto::ListUsersResponse>, Status> {
        administrator(&request)?;
        let users = self.logins.broker().access().users().map(|user| shown(user)).collect();
        Ok(Response::new(proto::ListUsersResponse { users }))
    }

    async fn add_user(
        &self,
        request: Request<proto::AddUserRequest>,
    ) -> Result<Response<proto::AddUserResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let (user, tags) = (user(&request.user)?, tags(&request.tags)?);
        self.logins.add_user(&user, password(request.password), tags).await.map_err(Failure::from)?;
        Ok(Response::new(proto::AddUserResponse {}))
    }

    async fn delete_user(
        &self,
        request: Request<proto::DeleteUserRequest>,
    ) -> Result<Response<proto::DeleteUserResponse>, Status> {
        administrator(&request)?;
        self.logins.delete_user(&user(&request.get_ref().user)?).await.map_err(Failure::from)?;
        Ok(Response::new(proto::DeleteUserResponse {}))
    }

    async fn set_user_password(
        &self,
        request: Request<proto::SetUserPasswordRequest>,
    ) -> Result<Response<proto::SetUserPasswordResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let user = user(&request.user)?;
        self.logins.set_password(&user, password(request.password)).await.map_err(Failure::from)?;
        Ok(Response::new(proto::SetUserPasswordResponse {}))
    }

    async fn set_user_tags(
        &self,
        request: Request<proto::SetUserTagsRequest>,
    ) -> Result<Response<proto::SetUserTagsResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let (user, tags) = (user(&request.user)?, tags(&request.tags)?);
        self.change(AccessRecord::SetTags { user, tags }).await?;
        Ok(Response::new(proto::SetUserTagsResponse {}))
    }

    async fn set_user_limits(
        &self,
        request: Request<proto::SetUserLimitsRequest>,
    ) -> Result<Response<proto::SetUserLimitsResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let asked = request.limits.unwrap_or_default();
        let limits = UserLimits { max_connections: asked.max_connections, max_channels: asked.max_channels };
        self.change(AccessRecord::SetLimits { user: user(&request.user)?, limits }).await?;
        Ok(Response::new(proto::SetUserLimitsResponse {}))
    }

    async fn set_user_default_vhost(
        &self,
        request: Request<proto::SetUserDefaultVhostRequest>,
    ) -> Result<Response<proto::SetUserDefaultVhostResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let vhost = (!request.vhost.is_empty()).then(|| request.vhost.as_str().into());
        let name = fields::vhost(&request.vhost)?;
        if self.logins.broker().vhost(&name).is_none() {
            return Err(Failure::from(VhostError::NotFound { name }).into());
        }
        self.change(AccessRecord::SetDefaultVhost { user: user(&request.user)?, vhost }).await?;
        Ok(Response::new(proto::SetUserDefaultVhostResponse {}))
    }

    async fn add_access_key(
        &self,
        request: Request<proto::AddAccessKeyRequest>,
    ) -> Result<Response<proto::AddAccessKeyResponse>, Status> {
        administrator(&request)?;
        let key = self.logins.add_key(&user(&request.get_ref().user)?).await.map_err(Failure::from)?;
        Ok(Response::new(proto::AddAccessKeyResponse { id: key.id, secret: key.secret }))
    }

    async fn remove_access_key(
        &self,
        request: Request<proto::RemoveAccessKeyRequest>,
    ) -> Result<Response<proto::RemoveAccessKeyResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let (user, id) = (user(&request.user)?, request.id.as_str().into());
        self.change(AccessRecord::RemoveKey { user, id }).await?;
        Ok(Response::new(proto::RemoveAccessKeyResponse {}))
    }

    async fn add_token(
        &self,
        request: Request<proto::AddTokenRequest>,
    ) -> Result<Response<proto::AddTokenResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let made = self.logins.add_token(&user(&request.user)?, &request.description).await;
        let made = made.map_err(Failure::from)?;
        Ok(Response::new(proto::AddTokenResponse { id: made.id, token: made.token }))
    }

    async fn remove_token(
        &self,
        request: Request<proto::RemoveTokenRequest>,
    ) -> Result<Response<proto::RemoveTokenResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let (user, id) = (user(&request.user)?, request.id.as_str().into());
        self.change(AccessRecord::RemoveToken { user, id }).await?;
        Ok(Response::new(proto::RemoveTokenResponse {}))
    }

    async fn set_permissions(
        &self,
        request: Request<proto::SetPermissionsRequest>,
    ) -> Result<Response<proto::SetPermissionsResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let user = user(&request.user)?;
        let asked = request.permissions.ok_or_else(|| Failure::invalid("permissions must be given"))?;
        let (vhost, configure) = (vhost(&asked.vhost), asked.configure);
        let permissions = PermissionTexts { configure, write: asked.write, read: asked.read };
        self.change(AccessRecord::SetPermissions { user, vhost, permissions }).await?;
        Ok(Response::new(proto::SetPermissionsResponse {}))
    }

    async fn clear_permissions(
        &self,
        request: Request<proto::ClearPermissionsRequest>,
    ) -> Result<Response<proto::ClearPermissionsResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let (user, vhost) = (user(&request.user)?, vhost(&request.vhost));
        self.change(AccessRecord::ClearPermissions { user, vhost }).await?;
        Ok(Response::new(proto::ClearPermissionsResponse {}))
    }

    async fn set_topic_permissions(
        &self,
        request: Request<proto::SetTopicPermissionsRequest>,
    ) -> Result<Response<proto::SetTopicPermissionsResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let user = user(&request.user)?;
        let asked = request.permissions.ok_or_else(|| Failure::invalid("permissions must be given"))?;
        let (vhost, exchange) = (vhost(&asked.vhost), asked.exchange.as_str().into());
        let (write, read) = (asked.write, asked.read);
        self.change(AccessRecord::SetTopics { user, vhost, exchange, write, read }).await?;
        Ok(Response::new(proto::SetTopicPermissionsResponse {}))
    }

    async fn clear_topic_permissions(
        &self,
        request: Request<proto::ClearTopicPermissionsRequest>,
    ) -> Result<Response<proto::ClearTopicPermissionsResponse>, Status> {
        administrator(&request)?;
        let request = request.into_inner();
        let (user, vhost) = (user(&request.user)?, vhost(&request.vhost));
        let exchange = (!request.exchange.is_empty()).then(|| request.exchange.as_str().into());
        self.change(AccessRecord::ClearTopics { user, vhost, exchange }).await?;
        Ok(Response::new(proto::ClearTopicPermissionsResponse {}))
    }
}

fn shown(user: &User) -> proto::User {
    let permissions = user.permissions.iter().map(|(vhost, permissions)| {
        let PermissionTexts { configure, write, read } = permissions.texts();
        proto::Permissions { vhost: vhost.to_string(), configure, write, read }
    });
    let topics = user.topics.iter().map(|((vhost, exchange), topics)| proto::TopicPermissions {
        vhost: vhost.to_string(),
        exchange: exchange.to_string(),
        write: topics.write.as_str().to_owned(),
        read: topics.read.as_str().to_owned(),
    });
    let keys = user.keys.iter();
    let keys = keys.map(|(id, key)| proto::AccessKey { id: id.to_string(), created_ms: key.created.0 });
    let tokens = user.tokens.iter().map(|(id, token)| proto::Token {
        id: id.to_string(),
        description: token.description.to_string(),
        created_ms: token.created.0,
    });
    proto::User {
        name: user.name.as_str().to_owned(),
        has_password: user.password.is_some(),
        tags: user.tags.iter().map(|tag| tag.as_str().to_owned()).collect(),
        permissions: permissions.collect(),
        topic_permissions: topics.collect(),
        limits: Some(proto::UserLimits {
            max_connections: user.limits.max_connections,
            max_channels: user.limits.max_channels,
        }),
        default_vhost: user.default_vhost.as_deref().unwrap_or_default().to_owned(),
        access_keys: keys.collect(),
        tokens: tokens.collect(),
    }
}
