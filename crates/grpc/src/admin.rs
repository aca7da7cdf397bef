//! The service of an operator: virtual hosts; policies and schedules, of which `policies.rs` and `schedules.rs` know more.

use nexo_access::{Identity, Logins, Tag};
use nexo_broker::topology::{DefaultQueueType, VhostError, VhostSpec};
use nexo_broker::{Broker, VhostInfo};
use nexo_types::VhostName;
use tonic::{Request, Response, Status};

use crate::access::{administrator, caller};
use crate::fields;
use crate::policies;
use crate::proto::{self, admin_service_server::AdminService};
use crate::schedules;
use crate::status::Failure;

/// Answers [`AdminService`] from a broker.
pub(crate) struct Admin {
    pub(crate) broker: Broker,
    pub(crate) logins: Logins,
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn list_vhosts(
        &self,
        request: Request<proto::ListVhostsRequest>,
    ) -> Result<Response<proto::ListVhostsResponse>, Status> {
        let identity = caller(&request)?;
        let mut vhosts = self.broker.vhosts();
        vhosts.retain(|vhost| may_see(&identity, &vhost.name).is_ok());
        let vhosts = vhosts.into_iter().map(to_proto).collect();
        Ok(Response::new(proto::ListVhostsResponse { vhosts }))
    }

    async fn get_vhost(
        &self,
        request: Request<proto::GetVhostRequest>,
    ) -> Result<Response<proto::GetVhostResponse>, Status> {
        let name = vhost(&request.get_ref().vhost)?;
        may_see(&caller(&request)?, &name)?;
        let found = self.broker.vhost(&name).ok_or_else(|| Failure::from(VhostError::NotFound { name }))?;
        Ok(Response::new(proto::GetVhostResponse { vhost: Some(to_proto(found)) }))
    }

    async fn put_vhost(
        &self,
        request: Request<proto::PutVhostRequest>,
    ) -> Result<Response<proto::PutVhostResponse>, Status> {
        administrator(&request)?;
        let identity = caller(&request)?;
        let request = request.into_inner();
        let name = vhost(&request.vhost)?;
        let change = request.config.unwrap_or_default();
        // What is wrong with the change itself is found before anything is touched.
        patch(VhostSpec::default(), &change)?;
        let decide = |found: Option<&VhostSpec>| match found {
            Some(_) if request.only_new => Err(VhostError::Exists { name: name.clone() }),
            found => {
                let spec = found.cloned().unwrap_or_default();
                Ok(patch(spec.clone(), &change).unwrap_or(spec))
            }
        };
        let created = self.broker.change_vhost(&name, decide).await.map_err(Failure::from)?;
        if created {
            self.logins.own_vhost(&identity, name.as_str()).await.map_err(Failure::from)?;
        }
        Ok(Response::new(proto::PutVhostResponse { created }))
    }

    async fn delete_vhost(
        &self,
        request: Request<proto::DeleteVhostRequest>,
    ) -> Result<Response<proto::DeleteVhostResponse>, Status> {
        administrator(&request)?;
        let name = vhost(&request.get_ref().vhost)?;
        let deleted = self.broker.delete_vhost(&name).await.map_err(Failure::from)?;
        let (queues, messages) = (deleted.queues, deleted.messages);
        Ok(Response::new(proto::DeleteVhostResponse { queues, messages }))
    }

    async fn list_policies(
        &self,
        request: Request<proto::ListPoliciesRequest>,
    ) -> Result<Response<proto::ListPoliciesResponse>, Status> {
        let identity = caller(&request)?;
        let policies = policies::list(&self.broker, &identity, request.get_ref())?;
        Ok(Response::new(proto::ListPoliciesResponse { policies }))
    }

    async fn get_policy(
        &self,
        request: Request<proto::GetPolicyRequest>,
    ) -> Result<Response<proto::GetPolicyResponse>, Status> {
        let identity = caller(&request)?;
        let policy = Some(policies::get(&self.broker, &identity, request.get_ref())?);
        Ok(Response::new(proto::GetPolicyResponse { policy }))
    }

    async fn put_policy(
        &self,
        request: Request<proto::PutPolicyRequest>,
    ) -> Result<Response<proto::PutPolicyResponse>, Status> {
        let identity = caller(&request)?;
        let policy = request.into_inner().policy.unwrap_or_default();
        let created = policies::put(&self.broker, &identity, &policy).await?;
        Ok(Response::new(proto::PutPolicyResponse { created }))
    }

    async fn delete_policy(
        &self,
        request: Request<proto::DeletePolicyRequest>,
    ) -> Result<Response<proto::DeletePolicyResponse>, Status> {
        let identity = caller(&request)?;
        policies::delete(&self.broker, &identity, request.get_ref()).await?;
        Ok(Response::new(proto::DeletePolicyResponse {}))
    }

    async fn list_schedules(
        &self,
        request: Request<proto::ListSchedulesRequest>,
    ) -> Result<Response<proto::ListSchedulesResponse>, Status> {
        let identity = caller(&request)?;
        let schedules = schedules::list(&self.broker, &identity, request.get_ref())?;
        Ok(Response::new(proto::ListSchedulesResponse { schedules }))
    }

    async fn get_schedule(
        &self,
        request: Request<proto::GetScheduleRequest>,
    ) -> Result<Response<proto::GetScheduleResponse>, Status> {
        let identity = caller(&request)?;
        let schedule = Some(schedules::get(&self.broker, &identity, request.get_ref())?);
        Ok(Response::new(proto::GetScheduleResponse { schedule }))
    }

    async fn put_schedule(
        &self,
        request: Request<proto::PutScheduleRequest>,
    ) -> Result<Response<proto::PutScheduleResponse>, Status> {
        let identity = caller(&request)?;
        let schedule = request.into_inner().schedule.unwrap_or_default();
        Ok(Response::new(schedules::put(&self.broker, &identity, schedule).await?))
    }

    async fn delete_schedule(
        &self,
        request: Request<proto::DeleteScheduleRequest>,
    ) -> Result<Response<proto::DeleteScheduleResponse>, Status> {
        let identity = caller(&request)?;
        schedules::delete(&self.broker, &identity, request.get_ref()).await?;
        Ok(Response::new(proto::DeleteScheduleResponse {}))
    }

    async fn pause_schedule(
        &self,
        request: Request<proto::PauseScheduleRequest>,
    ) -> Result<Response<proto::PauseScheduleResponse>, Status> {
        let identity = caller(&request)?;
        let next_ms = schedules::pause(&self.broker, &identity, request.get_ref()).await?;
        Ok(Response::new(proto::PauseScheduleResponse { next_ms }))
    }

    async fn run_schedule(
        &self,
        request: Request<proto::RunScheduleRequest>,
    ) -> Result<Response<proto::RunScheduleResponse>, Status> {
        let identity = caller(&request)?;
        schedules::run(&self.broker, &identity, request.get_ref()).await?;
        Ok(Response::new(proto::RunScheduleResponse {}))
    }
}

/// Who may come in may know of a virtual host, and so may administrators.
fn may_see(identity: &Identity, name: &VhostName) -> Result<(), Failure> {
    if identity.is(Tag::ADMINISTRATOR) { Ok(()) } else { Ok(identity.may_enter(name.as_str())?) }
}

/// The virtual host that a request is about, which must be named: none is meant by saying nothing.
fn vhost(name: &str) -> Result<VhostName, Failure> {
    VhostName::new(name).map_err(|error| fields::named("vhost", &error))
}

fn to_proto(vhost: VhostInfo) -> proto::Vhost {
    let VhostSpec { description, tags, default_queue_type, max_connections, max_queues } = vhost.spec;
    let limit = |max: Option<u64>| max.map_or(-1, |max| i64::try_from(max).unwrap_or(i64::MAX));
    proto::Vhost {
        name: vhost.name.as_str().to_owned(),
        config: Some(proto::VhostConfig {
            description: Some(description),
            tags: Some(proto::VhostTags { tags }),
            default_queue_type: Some(default_queue_type.map_or("", DefaultQueueType::as_str).to_owned()),
            max_connections: Some(limit(max_connections)),
            max_queues: Some(limit(max_queues)),
        }),
        queues: vhost.queues,
        connections: vhost.connections,
    }
}

/// Settings with a change made to them.
fn patch(mut spec: VhostSpec, change: &proto::VhostConfig) -> Result<VhostSpec, Failure> {
    if let Some(description) = &change.description {
        spec.description.clone_from(description);
    }
    if let Some(tags) = &change.tags {
        spec.tags.clone_from(&tags.tags);
    }
    match change.default_queue_type.as_deref() {
        None => {}
        Some("") => spec.default_queue_type = None,
        Some(name) => {
            let kind = DefaultQueueType::parse(name).ok_or_else(|| {
                Failure::invalid(format!(
                    "config.default_queue_type must be classic or quorum; it is '{name}'"
                ))
            })?;
            spec.default_queue_type = Some(kind);
        }
    }
    if let Some(max) = change.max_connections {
        spec.max_connections = u64::try_from(max).ok();
    }
    if let Some(max) = change.max_queues {
        spec.max_queues = u64::try_from(max).ok();
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let spec = VhostSpec { description: "old".into(), max_queues: Some(3), ..VhostSpec::default() };
        let change = proto::VhostConfig {
            default_queue_type: Some("quorum".into()),
            max_connections: Some(5),
            ..Default::default()
        };
        let spec = patch(spec, &change).unwrap();
        assert_eq!((&*spec.description, spec.max_queues, spec.max_connections), ("old", Some(3), Some(5)));
        assert_eq!(spec.default_queue_type, Some(DefaultQueueType::Quorum));
        let change = proto::VhostConfig {
            default_queue_type: Some(String::new()),
            max_queues: Some(-1),
            ..Default::default()
        };
        let spec = patch(spec, &change).unwrap();
        assert_eq!((spec.default_queue_type, spec.max_queues), (None, None));
        let change = proto::VhostConfig { default_queue_type: Some("stream".into()), ..Default::default() };
        assert!(patch(spec, &change).unwrap_err().message.contains("it is 'stream'"));
    }
}
