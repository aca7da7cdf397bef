//! One table of who may do what, tried on every way in: AMQP, the native API, SQS and the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod world;

use std::collections::BTreeSet;

use nexo_access::{NewPassword, PermissionTexts, Tag, UserName};
use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::{basic, confirm, queue};
use nexo_amqp_client::{Error, Login, methods};
use nexo_broker::access::AccessRecord;
use nexo_broker::topology::{Binding, Destination, ExchangeKind, ExchangeSpec, Matching};
use nexo_broker::{NewMessage, QueueConfig};
use nexo_grpc::client::Credentials;
use nexo_grpc::proto;
use nexo_types::{ExchangeName, QueueName};
use serde_json::json;
use world::{PATIENCE, World, ask_http, ask_sqs, within};

/// What is done to a queue, and to the exchange of the same name that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Create,
    Send,
    Take,
    Purge,
    Delete,
}

const ACTIONS: [Action; 5] = [Action::Create, Action::Send, Action::Take, Action::Purge, Action::Delete];
const RESOURCES: [&str; 2] = ["own-q", "other-q"];

/// A user, its patterns to configure, write and read if it has any in the virtual host, and what it may do with each
/// resource: create, send, take, purge, delete.
type Row = (&'static str, Option<[&'static str; 3]>, [&'static str; 2]);

/// `y` where it may, `-` where not.
const TABLE: [Row; 8] = [
    ("nobody", None, ["-----", "-----"]),
    ("nothing", Some(["", "", ""]), ["-----", "-----"]),
    ("all", Some([".*", ".*", ".*"]), ["yyyyy", "yyyyy"]),
    ("own", Some(["^own-", "^own-", "^own-"]), ["yyyyy", "-----"]),
    ("maker", Some([".*", "", ""]), ["y---y", "y---y"]),
    ("sender", Some(["", "^own-", "^$"]), ["-y---", "-----"]),
    ("taker", Some(["", "", "-q$"]), ["--yy-", "--yy-"]),
    ("mixed", Some(["other", "own", "(own|other)-q"]), ["-yyy-", "y-yyy"]),
];

/// The resource is there with a message in it; or not, if it is to be made.
async fn prepare(world: &World, resource: &str, action: Action) {
    let (name, exchange) = (QueueName::new(resource).unwrap(), ExchangeName::new(resource).unwrap());
    let _ = world.broker.delete_queue(&name).await;
    if action == Action::Create {
        return;
    }
    world.broker.create_queue(&name, QueueConfig::default()).await.unwrap();
    let spec = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Fanout));
    world.broker.declare_exchange(&exchange, spec).await.unwrap();
    let binding = Binding::new(exchange, Destination::Queue(name.clone()), "".into(), Vec::new());
    world.broker.bind(binding).await.unwrap();
    world.broker.push(&name, vec![NewMessage::new("x")]).await.unwrap();
}

/// Whether AMQP lets the user. What it refuses is 403 for an action and 530 for the virtual host.
async fn over_amqp(world: &World, user: &str, resource: &'static str, action: Action) -> bool {
    let login = Login { user: user.into(), password: user.into(), ..Login::default() };
    let mut client = match nexo_amqp_client::Client::connect(world.amqp, &login, PATIENCE).await {
        Ok(client) => client,
        Err(Error::LogIn { source, .. }) if matches!(*source, Error::Closed { code: 530, .. }) => {
            return false;
        }
        Err(error) => panic!("{error:?}"),
    };
    client.open_channel(1).await.unwrap();
    let name = ShortStr::from_static(resource);
    let outcome = within(async {
        match action {
            Action::Create => client.call(1, &methods::declare_queue(name), "queue.declare-ok").await,
            Action::Send => {
                client.call(1, &confirm::Select { nowait: false }, "confirm.select-ok").await?;
                let publish = methods::publish(name, ShortStr::EMPTY);
                client.add_message(1, &publish, nexo_amqp_client::PERSISTENT, b"x");
                client.flush().await?;
                client.expect("basic.ack").await
            }
            Action::Take => {
                let get = basic::Get { ticket: 0, queue: name, no_ack: true };
                client.call(1, &get, "basic.get-ok").await
            }
            Action::Purge => {
                let purge = queue::Purge { ticket: 0, queue: name, nowait: false };
                client.call(1, &purge, "queue.purge-ok").await
            }
            Action::Delete => client.call(1, &methods::delete_queue(name), "queue.delete-ok").await,
        }
    });
    match outcome.await {
        Ok(_) => true,
        Err(Error::Closed { what: "channel", code: 403, text }) => {
            assert!(text.starts_with("ACCESS_REFUSED - access to "), "{text}");
            assert!(
                text.ends_with(&format!("'{resource}' in vhost '/' refused for user '{user}'")),
                "{text}"
            );
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether the native API lets the user.
async fn over_grpc(world: &World, user: &str, resource: &str, action: Action) -> bool {
    let client = world.grpc.with(Credentials::password(user, user));
    let queue = resource.to_owned();
    let outcome = within(async {
        match action {
            Action::Create => {
                // Without dead letters, for which others have to be allowed more.
                let config = Some(proto::QueueConfig { max_attempts: Some(0), ..Default::default() });
                let request = proto::CreateQueueRequest { queue, config, ..Default::default() };
                client.queues().create_queue(request).await.map(drop)
            }
            Action::Send => {
                let message = proto::NewMessage { body: "x".into(), ..Default::default() };
                client
                    .messages()
                    .push(proto::PushRequest { queue, messages: vec![message], ..Default::default() })
                    .await
                    .map(drop)
            }
            Action::Take => {
                let request = proto::PopRequest { queue, max: 1, ..Default::default() };
                client.messages().pop(request).await.map(|popped| {
                    assert_eq!(popped.get_ref().messages.len(), 1);
                })
            }
            Action::Purge => client
                .queues()
                .purge_queue(proto::PurgeQueueRequest { queue, ..Default::default() })
                .await
                .map(drop),
            Action::Delete => client
                .queues()
                .delete_queue(proto::DeleteQueueRequest { queue, ..Default::default() })
                .await
                .map(drop),
        }
    });
    match outcome.await {
        Ok(()) => true,
        Err(status) if status.code() == tonic::Code::PermissionDenied => false,
        Err(status) => panic!("{status:?}"),
    }
}

/// Whether SQS lets the user, with one of its keys.
async fn over_sqs(world: &World, (id, secret): (&str, &str), resource: &str, action: Action) -> bool {
    let url = json!({ "QueueUrl": resource });
    let (name, body) = match action {
        Action::Create => ("CreateQueue", json!({ "QueueName": resource })),
        Action::Send => ("SendMessage", json!({ "QueueUrl": resource, "MessageBody": "x" })),
        Action::Take => ("ReceiveMessage", url),
        Action::Purge => ("PurgeQueue", url),
        Action::Delete => ("DeleteQueue", url),
    };
    let (status, answer) = ask_sqs(world.sqs, id, secret, name, &body).await;
    match status {
        200 => {
            let taken = answer["Messages"].as_array().map_or(0, Vec::len);
            assert_eq!(taken, usize::from(action == Action::Take), "{answer}");
            true
        }
        403 => {
            assert_eq!(answer["__type"], "com.amazon.coral.service#AccessDeniedException", "{answer}");
            false
        }
        other => panic!("{other}: {answer}"),
    }
}

/// Whether the management API lets the user, who has the tag that lets him in at all.
async fn over_http(world: &World, user: &str, resource: &str, action: Action) -> bool {
    let queue = format!("/api/queues/%2F/{resource}");
    let (method, path, body) = match action {
        Action::Create => ("PUT", queue, json!({ "durable": true })),
        Action::Send => {
            let message =
                json!({ "properties": {}, "routing_key": "", "payload": "x", "payload_encoding": "string" });
            ("POST", format!("/api/exchanges/%2F/{resource}/publish"), message)
        }
        Action::Take => {
            let get = json!({ "count": 1, "ackmode": "ack_requeue_false", "encoding": "auto" });
            ("POST", format!("{queue}/get"), get)
        }
        Action::Purge => ("DELETE", format!("{queue}/contents"), json!({})),
        Action::Delete => ("DELETE", queue, json!({})),
    };
    let (status, answer) = ask_http(world.http, user, method, &path, &body).await;
    match status {
        200 | 201 | 204 => {
            assert_eq!(
                answer.as_array().map_or(0, Vec::len),
                usize::from(action == Action::Take),
                "{answer}"
            );
            assert!(action != Action::Send || answer == json!({ "routed": true }), "{answer}");
            true
        }
        401 => {
            assert_eq!(answer["error"], "not_authorised", "{answer}");
            false
        }
        other => panic!("{other}: {answer}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_in_lets_a_user_do_what_the_table_says() {
    let world = World::start().await;
    let mut cells = 0;
    for (name, patterns, expected) in TABLE {
        let user = UserName::new(name).unwrap();
        let password = NewPassword::Plain(name.as_bytes().to_vec());
        // It lets him use the management API, and gives him no right besides.
        let tags = [Tag::new(Tag::MANAGEMENT).unwrap()].into();
        world.logins.add_user(&user, password, tags).await.unwrap();
        if let Some([configure, write, read]) = patterns.map(|patterns| patterns.map(str::to_owned)) {
            let permissions = PermissionTexts { configure, write, read };
            let change = AccessRecord::SetPermissions { user: user.clone(), vhost: "/".into(), permissions };
            world.logins.change(&[change]).await.unwrap();
        }
        let key = world.logins.add_key(&user).await.unwrap();
        for (resource, expected) in RESOURCES.into_iter().zip(expected) {
            for (action, expected) in ACTIONS.into_iter().zip(expected.chars()) {
                let what = format!("{name} {action:?} {resource}");
                let expected = expected == 'y';
                prepare(&world, resource, action).await;
                assert_eq!(over_amqp(&world, name, resource, action).await, expected, "AMQP: {what}");
                prepare(&world, resource, action).await;
                assert_eq!(over_grpc(&world, name, resource, action).await, expected, "native: {what}");
                prepare(&world, resource, action).await;
                let key = (&*key.id, &*key.secret);
                assert_eq!(over_sqs(&world, key, resource, action).await, expected, "SQS: {what}");
                prepare(&world, resource, action).await;
                assert_eq!(over_http(&world, name, resource, action).await, expected, "HTTP: {what}");
                cells += 4;
            }
        }
    }
    assert_eq!(cells, 8 * 2 * 5 * 4);
    world.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_comes_in_with_what_is_not_his() {
    let world = World::start().await;
    let ann = UserName::new("ann").unwrap();
    world.logins.add_user(&ann, NewPassword::Plain(b"pw".to_vec()), BTreeSet::new()).await.unwrap();
    let key = world.logins.add_key(&ann).await.unwrap();
    let login = Login { user: "ann".into(), password: "wrong".into(), ..Login::default() };
    assert!(nexo_amqp_client::Client::connect(world.amqp, &login, PATIENCE).await.is_err());
    let list = proto::ListQueuesRequest::default;
    for credentials in [Credentials::password("ann", "wrong"), Credentials::token("nexo_A_b")] {
        let refused = world.grpc.with(credentials).queues().list_queues(list()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    }
    let refused = ask_sqs(world.sqs, &key.id, "wrong", "ListQueues", &json!({})).await;
    assert_eq!(refused.1["__type"], "com.amazon.coral.service#InvalidSignatureException", "{refused:?}");
    // A key that nobody knows is as good as none: on this machine that is guest, until guest is gone.
    assert_eq!(ask_sqs(world.sqs, "any", "thing", "ListQueues", &json!({})).await.0, 200);
    assert!(world.grpc.queues().list_queues(list()).await.is_ok());
    world.logins.delete_user(&UserName::new("guest").unwrap()).await.unwrap();
    assert_eq!(ask_sqs(world.sqs, "any", "thing", "ListQueues", &json!({})).await.0, 403);
    let refused = world.grpc.queues().list_queues(list()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    world.broker.shutdown().await;
}

/// A user sees what it may do something with.
#[tokio::test(flavor = "multi_thread")]
async fn lists_show_what_concerns_the_user() {
    let world = World::start().await;
    for resource in RESOURCES {
        prepare(&world, resource, Action::Take).await;
    }
    let own = UserName::new("own").unwrap();
    world.logins.add_user(&own, NewPassword::Plain(b"own".to_vec()), BTreeSet::new()).await.unwrap();
    let permissions =
        PermissionTexts { configure: String::new(), write: "^own-".into(), read: String::new() };
    let change = AccessRecord::SetPermissions { user: own.clone(), vhost: "/".into(), permissions };
    world.logins.change(&[change]).await.unwrap();
    let token = world.logins.add_token(&own, "").await.unwrap().token;
    let listed = world.grpc.with(Credentials::token(&token)).queues();
    let listed = listed.clone().list_queues(proto::ListQueuesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.queues.iter().map(|queue| &*queue.name).collect::<Vec<_>>(), ["own-q"]);
    let key = world.logins.add_key(&own).await.unwrap();
    let (_, listed) = ask_sqs(world.sqs, &key.id, &key.secret, "ListQueues", &json!({})).await;
    let urls = listed["QueueUrls"].as_array().unwrap();
    assert!(urls.len() == 1 && urls[0].as_str().unwrap().ends_with("/own-q"), "{listed}");
    world.broker.shutdown().await;
}

/// What somebody received is his to settle, and nobody else's who may not read there.
#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_is_no_permission() {
    let world = World::start().await;
    prepare(&world, "own-q", Action::Take).await;
    let other = UserName::new("other").unwrap();
    world.logins.add_user(&other, NewPassword::Plain(b"other".to_vec()), BTreeSet::new()).await.unwrap();
    let permissions = PermissionTexts { read: "^other-".into(), ..PermissionTexts::all() };
    let change = AccessRecord::SetPermissions { user: other, vhost: "/".into(), permissions };
    world.logins.change(&[change]).await.unwrap();
    let pop = proto::PopRequest { queue: "own-q".into(), max: 1, ..Default::default() };
    let popped = world.grpc.messages().pop(pop).await.unwrap().into_inner().messages;
    let receipts = vec![popped[0].receipt.clone()];
    let stranger = world.grpc.with(Credentials::password("other", "other"));
    let refused =
        stranger.messages().ack(proto::AckRequest { receipts: receipts.clone() }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    world.grpc.messages().ack(proto::AckRequest { receipts }).await.unwrap();
    world.broker.shutdown().await;
}

/// What somebody may do in one virtual host he may not in another, on any way in; with the virtual host his rights go.
#[tokio::test(flavor = "multi_thread")]
async fn permissions_hold_in_their_virtual_host() {
    let world = World::start().await;
    let put = |only_new| proto::PutVhostRequest { vhost: "shop".into(), only_new, ..Default::default() };
    world.grpc.admin().put_vhost(put(true)).await.unwrap();
    prepare(&world, "own-q", Action::Take).await;
    let ann = UserName::new("ann").unwrap();
    world.logins.add_user(&ann, NewPassword::Plain(b"ann".to_vec()), BTreeSet::new()).await.unwrap();
    let allow = |vhost: &str| AccessRecord::SetPermissions {
        user: ann.clone(),
        vhost: vhost.into(),
        permissions: PermissionTexts::all(),
    };
    let home = AccessRecord::SetDefaultVhost { user: ann.clone(), vhost: Some("shop".into()) };
    world.logins.change(&[allow("shop"), home]).await.unwrap();
    let key = world.logins.add_key(&ann).await.unwrap();
    let client = world.grpc.with(Credentials::password("ann", "ann"));
    let create = |vhost: &str| proto::CreateQueueRequest {
        queue: "own-q".into(),
        vhost: vhost.into(),
        ..Default::default()
    };
    client.queues().create_queue(create("shop")).await.unwrap();
    let refused = client.queues().create_queue(create("")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    assert!(client.admin().put_vhost(put(false)).await.is_err(), "she is no administrator");
    let seen = client.admin().list_vhosts(proto::ListVhostsRequest {}).await.unwrap().into_inner().vhosts;
    assert_eq!(seen.iter().map(|vhost| &*vhost.name).collect::<Vec<_>>(), ["shop"]);

    let login = |vhost: &str| Login {
        user: "ann".into(),
        password: "ann".into(),
        virtual_host: vhost.into(),
        ..Login::default()
    };
    assert!(nexo_amqp_client::Client::connect(world.amqp, &login("/"), PATIENCE).await.is_err());
    let mut amqp = nexo_amqp_client::Client::connect(world.amqp, &login("shop"), PATIENCE).await.unwrap();
    amqp.open_channel(1).await.unwrap();
    let passive = queue::Declare { passive: true, ..methods::declare_queue(ShortStr::from_static("own-q")) };
    within(amqp.call(1, &passive, "queue.declare-ok")).await.unwrap();
    drop(amqp);

    // Her queues of SQS are at home: this one is empty, and that of "/" has a message.
    let receive = json!({ "QueueUrl": "own-q" });
    let (status, answer) = ask_sqs(world.sqs, &key.id, &key.secret, "ReceiveMessage", &receive).await;
    assert!(status == 200 && answer["Messages"].is_null(), "{answer}");

    let delete = proto::DeleteVhostRequest { vhost: "shop".into() };
    world.grpc.admin().delete_vhost(delete).await.unwrap();
    world.grpc.admin().put_vhost(put(true)).await.unwrap();
    let error = nexo_amqp_client::Client::connect(world.amqp, &login("shop"), PATIENCE).await.unwrap_err();
    let Error::LogIn { source, .. } = error else { panic!("{error:?}") };
    assert!(source.to_string().contains("access to vhost 'shop' refused for user 'ann'"), "{source}");
    world.broker.shutdown().await;
}

/// Whichever way permissions are set, their virtual host must be there.
#[tokio::test(flavor = "multi_thread")]
async fn permissions_need_a_virtual_host() {
    let world = World::start().await;
    let ann = UserName::new("ann").unwrap();
    world.logins.add_user(&ann, NewPassword::Plain(b"ann".to_vec()), BTreeSet::new()).await.unwrap();
    let all = |vhost: &str| proto::Permissions {
        vhost: vhost.into(),
        configure: ".*".into(),
        write: ".*".into(),
        read: ".*".into(),
    };
    let set =
        |vhost: &str| proto::SetPermissionsRequest { user: "ann".into(), permissions: Some(all(vhost)) };
    let refused = world.grpc.users().set_permissions(set("none")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::NotFound, "there is no virtual host 'none'")
    );
    let home = proto::SetUserDefaultVhostRequest { user: "ann".into(), vhost: "none".into() };
    let refused = world.grpc.users().set_user_default_vhost(home).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
    let body = json!({ "configure": "", "write": "", "read": "" });
    let (status, answer) = ask_http(world.http, "guest", "PUT", "/api/permissions/none/ann", &body).await;
    assert_eq!((status, &answer["reason"]), (400, &json!("vhost_or_user_not_found")));
    world.grpc.users().set_permissions(set("/")).await.unwrap();
    assert_eq!(world.broker.access().user("ann").unwrap().permissions.len(), 1);
    world.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_manage_users() {
    let world = World::start().await;
    let all = UserName::new("all").unwrap();
    world.logins.add_user(&all, NewPassword::Plain(b"all".to_vec()), BTreeSet::new()).await.unwrap();
    let change =
        AccessRecord::SetPermissions { user: all, vhost: "/".into(), permissions: PermissionTexts::all() };
    world.logins.change(&[change]).await.unwrap();
    let plain = world.grpc.with(Credentials::password("all", "all"));
    let add = || proto::AddUserRequest { user: "eve".into(), password: Some("pw".into()), tags: vec![] };
    let refused = plain.users().add_user(add()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(plain.users().list_users(proto::ListUsersRequest {}).await.is_err());
    world.grpc.users().add_user(add()).await.unwrap();
    let again = world.grpc.users().add_user(add()).await.unwrap_err();
    assert_eq!(again.code(), tonic::Code::AlreadyExists);
    let listed = world.grpc.users().list_users(proto::ListUsersRequest {}).await.unwrap().into_inner().users;
    assert_eq!(listed.iter().map(|user| &*user.name).collect::<Vec<_>>(), ["all", "eve", "guest"]);
    assert!(!format!("{listed:?}").contains("argon2"), "no hash is shown");
    world.broker.shutdown().await;
}
