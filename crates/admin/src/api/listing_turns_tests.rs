//! Lists that may be long take turns: few are made at the same time, and none on a thread of the runtime.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nexo_access::{Identity, Logins, UserName};
use nexo_broker::policy::PolicyKind;
use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::MemoryDisk;

use super::access::Caller;
use super::error::ApiError;
use super::question::Question;
use super::{Api, LISTS_MAX, parameters, permissions, policies, queues, users, vhosts};

type Listing = BoxFuture<'static, Result<Response, ApiError>>;

/// All lists of things that somebody may make many of.
fn lists(api: &Api) -> Vec<(&'static str, Listing)> {
    let identity = Identity::configured(api.broker.clone(), UserName::new("admin").unwrap());
    let caller = Caller::admitted(identity).unwrap();
    let (state, caller) = (|| State(api.clone()), || caller.clone());
    let (query, vhost) = (Query::default, || Path("/".to_owned()));
    vec![
        ("queues", queues::list(state(), caller(), query(), Question::of([])).boxed()),
        ("policies", policies::list(api.clone(), caller(), PolicyKind::Regular, None, query().0).boxed()),
        ("parameters", parameters::list(state(), caller(), query()).boxed()),
        ("of a component", parameters::list_of_component(state(), caller(), vhost(), query()).boxed()),
        ("global parameters", parameters::list_global(state(), query()).boxed()),
        ("users", users::list(state()).boxed()),
        ("without permissions", users::list_without_permissions(state()).boxed()),
        ("limits of users", users::limits(state()).boxed()),
        ("limits of vhosts", vhosts::limits(state(), caller()).boxed()),
        ("permissions", permissions::list(state()).boxed()),
        ("permissions of a vhost", permissions::of_vhost(state(), vhost()).boxed()),
        ("topics", permissions::list_topics(state()).boxed()),
        ("topics of a vhost", permissions::topics_of_vhost(state(), vhost()).boxed()),
    ]
}

#[tokio::test]
async fn every_list_waits_for_its_turn() {
    let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
    let api = Api::new(broker.clone(), Logins::new(&broker), Vec::new());
    let turns = api.lists.clone().acquire_many_owned(LISTS_MAX as u32).await.unwrap();
    let mut waiting = lists(&api);
    for (name, list) in &mut waiting {
        assert!(list.now_or_never().is_none(), "{name} takes no turn");
    }
    drop(turns);
    for (name, list) in waiting {
        assert!(list.await.unwrap().status().is_success(), "{name}");
    }
}
